"""docs/guarantees.md: every promise names tests, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from buquet.protocol.session import Session

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/guarantees.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert name in {node.name for node in found}


def test_every_promise_names_one() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and not row.startswith("| promise")]
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row] == []


def test_every_field_of_a_session_is_described() -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    table = text[text.index("| field of a session |") :].split("\n\n", 1)[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    described = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert described == set(Session.__struct_fields__)
