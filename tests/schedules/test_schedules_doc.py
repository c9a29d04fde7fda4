"""The page on schedules agrees with the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest
from test_cron import day
from test_docs import ROOT, table_names

from buquet import Queue, Schedule, ScheduleLastRun
from buquet.protocol.cron import ALIASES

PAGE = "docs/schedules.md"


def test_every_argument_is_described() -> None:
    parameters = set(inspect.signature(Queue.create_schedule).parameters) - {"self"}
    assert table_names(PAGE, "argument") == parameters


@pytest.mark.parametrize("described", [Schedule, ScheduleLastRun])
def test_every_field_is_described(described: type) -> None:
    assert table_names(PAGE, f"field of `{described.__name__}`") == {each.name for each in fields(described)}


def test_every_alias_is_named() -> None:
    text = (ROOT / PAGE).read_text()
    assert {alias for alias in ALIASES if f"`{alias}`" in text} == set(ALIASES)


def test_the_examples_of_changed_clocks() -> None:
    text = (ROOT / PAGE).read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (\d\d:\d\d[^|]*) \| (\d\d:\d\d[^|]*) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for cron, *shown in rows:
        for date, cell in zip(("2026-03-29", "2026-10-25"), shown, strict=True):
            found = [moment[:5] for moment in day(cron, "Europe/Berlin", date).split()]
            listed, *end = cell.removesuffix(" (the first)").split(" … ")
            expected = listed.removesuffix(" …").split(", ")
            assert found[: len(expected)] == expected
            assert end == [] or found[-1:] == end
            assert len(found) == len(expected) or "…" in cell
