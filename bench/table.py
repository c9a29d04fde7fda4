"""All benchmarks that take minutes, in one table; `make bench` runs this.

Example::

    PYTHONPATH=bench:tests python bench/table.py --json .benchmarks/buquet.json

Each figure is the median of its rounds, beside the least and the greatest; those of the core are
judged by their least, as noise only ever adds to a microsecond. What the machine's noise was is
measured as well: one fixed computation, timed between the sections. Exits with 1 if a budget is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pipeline
import wire
from budgets import __main__ as budgets

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
SPINS = 20
FAR_TASKS = 3_000
DUEL_TASKS = 3_000
MANY_TASKS = 100_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what was measured, in rounds, and what it may be."""

    section: str
    name: str
    unit: str
    rounds: list[float]
    budget: float | None = None
    at_least: bool = False
    """The budget is the least it may be, not the most."""
    by_least: bool = False
    """The least of the rounds is held against the budget, not their median."""

    @property
    def value(self) -> float:
        """What is held against the budget."""
        return min(self.rounds) if self.by_least else statistics.median(self.rounds)

    @property
    def is_met(self) -> bool:
        """Whether the budget is kept."""
        if self.budget is None:
            return True
        return self.value >= self.budget if self.at_least else self.value <= self.budget


# --- sections ----------------------------------------------------------------------------------

CORE = {
    "sign a PUT of 1 KiB": 5.0,
    "decode, claim and encode a record with 1 KiB of input": 6.0,
    "mint an id": 0.5,
    "shard of an id": 0.2,
    "format RFC 3339": 0.5,
    "parse RFC 3339": 0.5,
}
"""What the compiled core may take, in microseconds."""

SIGNS_FASTER = 10.0
"""How many times faster than botocore's signer it has to be."""


def core() -> Iterator[Figure]:
    """The core: compiled, plain, and what one would use without it, by pytest-benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "core.json"
        command = ("-m", "pytest", "bench/test_core.py", "--benchmark-enable", "--benchmark-only", "-q")
        options = (f"--benchmark-json={report}", "--benchmark-quiet")
        subprocess.run((sys.executable, *command, *options), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(report.read_text())["benchmarks"]
    least: dict[tuple[str, str], float] = {}
    for one in found:
        kind = (one["params"] or {}).get("core", "reference")
        stats = {name: one["stats"][name] * 1e6 for name in ("min", "median", "q3")}
        least[one["group"], kind] = stats["min"]
        budget = CORE.get(one["group"]) if kind == "compiled" else None
        rounds = [stats["min"], stats["median"], stats["q3"]]
        yield Figure("core", f"{one['group']}, {kind}", "us", rounds, budget, by_least=True)
    signed = "sign a PUT of 1 KiB"
    factor = least[signed, "reference"] / least[signed, "compiled"]
    yield Figure("core", "botocore's signer : ours", "x", [factor], SIGNS_FASTER, at_least=True)


def http() -> Iterator[Figure]:
    """A signed PUT, by each wire on each loop."""
    for cost in wire.measure():
        name = f"signed PUT of 1 KiB, {cost.wire}, {cost.loop}"
        yield Figure("http", name, "us CPU", cost.us, cost.budget_us)


def far() -> Iterator[Figure]:
    """One worker with 64 slots on the memory store, whose requests take longer."""
    for latency_ms, budget in ((20, 0.70), (50, 0.85)):
        found = [asyncio.run(pipeline.far(latency_ms / 1000, FAR_TASKS)) for _ in range(ROUNDS)]
        shares = [one.share or 0.0 for one in found]
        name = f"worker at {latency_ms} ms a request, of 64 / (3 x {latency_ms} ms)"
        yield Figure("worker", name, "", shares, budget, at_least=True)


def duel() -> Iterator[Figure]:
    """A worker and a bare client by turns on a SeaweedFS."""
    with pipeline.seaweedfs() as settings:
        found = asyncio.run(pipeline.duel(settings, tasks=DUEL_TASKS, rounds=ROUNDS))
    yield Figure("worker", "worker : bare client", "", found.worker_ratios, 0.6, at_least=True)
    yield Figure("worker", "submit : bare PUTs", "", found.submit_ratios, 0.6, at_least=True)
    yield Figure("worker", "a task, claim to completion", "us CPU", [found.worker_cpu_us_a_task], 400.0)
    yield Figure("worker", "tasks a second", "/s", [found.worker_per_s])
    yield Figure("worker", "submissions a second", "/s", [found.submit_per_s])


def many() -> Iterator[Figure]:
    """`submit_many` on a store that discards."""
    command = (sys.executable, "bench/submit_many.py", "--json", "--tasks", str(MANY_TASKS))
    report = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(report.stdout)
    yield Figure("submit_many", f"memory for {MANY_TASKS:,} tasks", "MiB", [found["peak_mib"]], 300.0)


def requests() -> Iterator[Figure]:
    """What tasks cost, at the socket of a SeaweedFS and in virtual time: the tests' own figures."""
    for where, measured in (("socket", budgets.at_the_socket()), ("virtual", budgets.in_virtual_time())):
        for figure in measured:
            yield Figure(f"requests, {where}", figure.name, "", [figure.value], figure.budget)


SECTIONS: tuple[Callable[[], Iterator[Figure]], ...] = (core, http, far, duel, many, requests)


# --- the machine ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Noise:
    """How long one fixed computation took, again and again, in milliseconds."""

    ms: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Time it some more."""
        data = bytes(1 << 20)
        for _ in range(SPINS):
            began = time.perf_counter()
            for _ in range(8):
                hashlib.sha256(data).digest()
            self.ms.append((time.perf_counter() - began) * 1000)

    def __str__(self) -> str:
        ordered = sorted(self.ms)
        middle = statistics.median(ordered)
        late = ordered[int(len(ordered) * 0.95)]
        return (
            f"a fixed computation took {middle:.1f} ms; at best {ordered[0] / middle - 1:+.0%}, "
            f"one in twenty {late / middle - 1:+.0%} or more"
        )


def machine() -> str:
    """What it ran on."""
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"


# --- the table -----------------------------------------------------------------------------------


def show(figure: Figure) -> None:
    """Print one row."""
    low, high = min(figure.rounds), max(figure.rounds)
    spread = f"{low:.4g} - {high:.4g}" if len(figure.rounds) > 1 else ""
    budget = "" if figure.budget is None else f"{'>=' if figure.at_least else '<='} {figure.budget:g}"
    verdict = "" if figure.is_met else "  MISSED"
    print(
        f"{figure.name:<66} {figure.value:>8.4g} {figure.unit:<7} {spread:<17} {budget}{verdict}", flush=True
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = [section.__name__ for section in SECTIONS]
    parser.add_argument("--only", choices=names, action="append", help="may be given more than once")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    noise = Noise()
    figures = []
    began = datetime.now(UTC)
    print(f"{'':<66} {'figure':>8} {'':<7} {'least - greatest':<17} budget")
    for section in SECTIONS:
        if arguments.only and section.__name__ not in arguments.only:
            continue
        noise.sample()
        for figure in section():
            show(figure)
            figures.append(figure)
    noise.sample()
    print(f"\n{machine()}, {began:%Y-%m-%d %H:%M} UTC. Noise: {noise}.")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(figure) | {"value": figure.value, "is_met": figure.is_met} for figure in figures]
        report = {"at": began.isoformat(), "machine": machine(), "noise_ms": noise.ms, "figures": rows}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
        print(f"written to {arguments.json}")
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
