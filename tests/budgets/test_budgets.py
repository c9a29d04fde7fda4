"""The request budgets: at the socket of a real server, and in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from servers import Server

from budgets import measure
from budgets.real import Site
from budgets.tally import Figure


def check(figures: Sequence[Figure]) -> None:
    """Fail with the whole table if a budget is missed."""
    assert all(figure.is_met for figure in figures), "\n".join(map(str, figures))


@pytest.mark.server
async def test_at_the_socket(seaweedfs: Server, tmp_path: Path) -> None:
    """Counted by a proxy: whatever any thread of any process sends."""
    async with Site(seaweedfs, tmp_path / "workers.log") as site:
        figures = await measure.at_the_socket(site)
    check(figures)
    assert figures[0].value == 1


@pytest.mark.parametrize("seed", measure.SEEDS)
def test_busy_workers(seed: int) -> None:
    check(measure.of_busy_workers(seed))


@pytest.mark.parametrize("seed", measure.SEEDS)
def test_sixty_four_workers(seed: int) -> None:
    """A burst, and then a trickle."""
    check(measure.of_a_fleet(seed))


def test_idle_workers() -> None:
    check(measure.of_idle_workers())
