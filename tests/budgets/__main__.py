"""Measure all request budgets and print the table; exit with 1 if one is missed."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servers import SeaweedFS

from budgets import measure
from budgets.real import Site
from budgets.tally import Figure


def at_the_socket() -> list[Figure]:
    """Measure on a SeaweedFS of its own."""
    with tempfile.TemporaryDirectory(prefix="buquet-budgets-") as folder:
        server = SeaweedFS(Path(folder) / "s3")
        server.start()
        try:
            return asyncio.run(_measure(Site(server, Path(folder) / "workers.log")))
        finally:
            server.stop()


async def _measure(site: Site) -> list[Figure]:
    async with site:
        return await measure.at_the_socket(site)


def in_virtual_time() -> Iterator[Figure]:
    """Measure simulated workers; of each figure the worst of all seeds."""
    for measured in (measure.of_busy_workers, measure.of_a_fleet):
        for of_seeds in zip(*(measured(seed) for seed in measure.SEEDS), strict=True):
            yield max(of_seeds, key=lambda figure: figure.value)
    yield from measure.of_idle_workers()


def main() -> int:
    figures = []
    for title, measured in (
        ("at the socket of a SeaweedFS", at_the_socket),
        (f"in virtual time: the worst of {len(measure.SEEDS)} seeds", in_virtual_time),
    ):
        print(f"\n{title:<78} figure  budget")
        for figure in measured():
            print(figure, flush=True)
            figures.append(figure)
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
