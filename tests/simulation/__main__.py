"""`python -m simulation`: run seeds, or plant mutants; see `--help`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from simulation import mutants
from simulation.faults import COLUMNS, ROWS, impossible
from simulation.mutants import MUTANTS, Mutant
from simulation.scenario import run
from simulation.shrink import report, shrunk

Cell = tuple[str, str]

MOST_SEEDS = 1000
"""A mutant that none of so many seeds finds is missed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one seed came to, as it is passed between processes; a report if it failed."""

    requests: int
    writes: int
    table: Counter[Cell]
    report: str | None


def one(seed: int) -> Ran:
    """Run one seed."""
    result = run(seed)
    failed = None if result.breach is None else report(shrunk(result))
    return Ran(result.requests, result.steps, result.script.plan.table, failed)


def sweep(seeds: range, *, check_table: bool) -> bool:
    """Run seeds on all cores; print what came of them, and return whether all is well."""
    started = time.perf_counter()
    runs: list[Ran] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for ran in pool.map(one, seeds, chunksize=4):
            runs.append(ran)
            if ran.report is not None:
                print(ran.report, flush=True)
    took_s = time.perf_counter() - started
    table = sum((ran.table for ran in runs), Counter[Cell]())
    requests, writes = sum(ran.requests for ran in runs), sum(ran.writes for ran in runs)
    failures = sum(ran.report is not None for ran in runs)
    print_table(table)
    print(
        f"{len(seeds)} seeds in {took_s:.1f} s: {len(seeds) / took_s:.1f} seeds/s, {requests / took_s:,.0f}"
        f" requests/s, {writes / took_s:,.0f} writes/s; {requests:,} requests, {writes:,} writes checked,"
        f" {failures} seeds failed"
    )
    empty = [cell for cell in _cells() if not table[cell]]
    if check_table and empty:
        print("never met: " + ", ".join(f"{column} on {row}" for row, column in empty))
    return not failures and not (check_table and empty)


def _cells() -> Iterable[Cell]:
    return [(row, column) for row in ROWS for column in COLUMNS if impossible(row, column) is None]


def print_table(table: Counter[Cell]) -> None:
    """Print how often which fault befell which kind of request."""
    widths = [max(len(column), 7) for column in COLUMNS]
    print(f"{'':24}", *(f"{column:>{width}}" for column, width in zip(COLUMNS, widths, strict=True)))
    reasons: dict[str, None] = {}
    for row in ROWS:
        cells = []
        for column, width in zip(COLUMNS, widths, strict=True):
            why = impossible(row, column)
            if why is not None:
                reasons[f"{column}: {why}"] = None
            cells.append(f"{'-' if why is not None else table[row, column]:>{width}}")
        print(f"{row:24}", *cells)
    print("-  cannot happen:", *reasons, sep="\n     ")


def plant(mutant: Mutant) -> tuple[bool, int | None, str]:
    """Plant one mutant: whether it is found, by which seed, and a line that says so."""
    known = mutants.recorded().get(mutant.name)
    try:
        found = None if known is None else mutants.find(mutant, [known])
        found = found or mutants.find(mutant, range(1, MOST_SEEDS + 1))
    except LookupError as error:
        return False, known, f"STALE   {error}"
    if found is None:
        return False, known, f"MISSED  {mutant.name}: none of {MOST_SEEDS} seeds finds it"
    return True, found.seed, f"found   {mutant.name}: seed {found.seed}: {found.rule}"


def plant_all() -> bool:
    """Plant all mutants, and run their seeds without them too."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        planted = []
        for result in pool.map(plant, MUTANTS):
            planted.append(result)
            print(result[-1], flush=True)
        seeds = {mutant.name: seed for mutant, (_, seed, _) in zip(MUTANTS, planted, strict=True) if seed}
        sound = list(pool.map(one, sorted(set(seeds.values()))))
    if seeds != mutants.recorded():
        mutants.record(seeds)
        print(f"other seeds than before are now recorded in {mutants.SEEDS.name}")
    for failed in sound:
        if failed.report is not None:
            print(f"without any mutant:\n{failed.report}")
    return all(is_found for is_found, *_ in planted) and all(ran.report is None for ran in sound)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(1, 301), help="for example 1-300, or 7")
    parser.add_argument(
        "--table", action="store_true", help="fail if a fault never met a kind of request that it could meet"
    )
    parser.add_argument("--mutants", action="store_true", help="plant each mutant: each must be found")
    arguments = parser.parse_args()
    if arguments.mutants:
        return not plant_all()
    return not sweep(arguments.seeds, check_table=arguments.table)


if __name__ == "__main__":
    sys.exit(main())
