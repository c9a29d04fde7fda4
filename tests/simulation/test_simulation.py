"""The simulation itself: a few seeds, and that what it says can be relied on.

`make sim` runs hundreds of seeds, `make sim-mutants` shows that it finds what it should.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation import mutants, oracle
from simulation.faults import COLUMNS, CRASH, LATE, PAUSE, ROWS, Plan, Weather, impossible, kind_of
from simulation.process import Agenda, Process
from simulation.scenario import LEAST_REQUESTS, TASKS, run, write_script
from simulation.shrink import minimal, report, shrunk

SEEDS = range(1, 9)
TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost(seed: int) -> None:
    result = run(seed)
    if result.breach is not None:
        pytest.fail(report(shrunk(result)))
    assert result.requests >= LEAST_REQUESTS
    gc.collect()  # a coroutine that was left open would complain now


def test_a_seed_has_all_that_it_should() -> None:
    for seed in range(1, 100):
        script = write_script(seed)
        mains = [role.main for role in script.roles]
        assert mains.count("worker") >= 3
        assert mains.count("monitor") == 2
        assert len(script.specs) >= TASKS == 20
        assert len(script.outages) == 1


def test_one_seed_gives_one_trace() -> None:
    """In another process too, where sets of strings and objects have other orders."""
    digests = [run(seed).digest() for seed in (3, 4)]
    code = "from simulation.scenario import run; print(*(run(seed).digest() for seed in (3, 4)))"
    for hash_seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
                "PYTHONHASHSEED": hash_seed,
            },
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.split() == digests


def test_other_seeds_give_other_traces() -> None:
    assert run(3).digest() != run(4).digest()


# --- processes -------------------------------------------------------------------------------


def test_a_paused_process_does_nothing_and_then_all_that_is_overdue() -> None:
    agenda, woken = Agenda(), []
    process = Process(agenda, "p", seed="p")

    async def main() -> None:
        for _ in range(3):
            await process.clock.sleep(1)
            woken.append(agenda.now)
        async with asyncio.timeout(1):
            await process.loop.create_future()

    process.start(main())
    agenda.at(1.5, lambda: process.pause(10))
    agenda.run(until_s=100)
    assert woken == [1, 11.5, 12.5]
    assert isinstance(process.error, TimeoutError)


def test_a_crashed_process_cleans_nothing_up() -> None:
    agenda, cleaned = Agenda(), []
    process = Process(agenda, "p", seed="p")

    async def main() -> None:
        try:
            await process.clock.sleep(10)
        finally:
            await process.clock.sleep(1)
            cleaned.append(agenda.now)

    process.start(main())
    agenda.at(5, process.crash)
    agenda.run(until_s=100)
    assert process.is_over
    assert not cleaned
    assert process.error is None


# --- faults ----------------------------------------------------------------------------------


def test_a_fault_does_not_depend_on_the_others() -> None:
    weather = Weather({LATE: 0.2, PAUSE: 0.2, CRASH: 0.2})
    everything = Plan(1, weather, 100)
    some = Plan(1, weather, 100, allowed=frozenset({("w", 3), ("w", 5)}))
    for number in range(10):
        at, row = ("w", number), ROWS[4]
        drawn = everything.draw(at, row, everything.chances(*at), now=0)
        assert some.draw(at, row, some.chances(*at), now=0) == (drawn if number in {3, 5} else None)
        assert everything.draw(at, row, everything.chances(*at), now=100) is None


def test_every_kind_of_request_of_a_run_is_a_row_of_the_table() -> None:
    assert {row for row, _ in run(3).script.plan.table} <= set(ROWS)
    assert kind_of("PUT", "tasks/1/x.json", b"{}", is_create=True) in ROWS
    assert all(impossible(row, column) is None or column != CRASH for row in ROWS for column in COLUMNS)


# --- what a failure says ---------------------------------------------------------------------


def test_shrinking_keeps_what_a_failure_needs() -> None:
    assert minimal(list(range(100)), lambda kept: {17, 71} <= set(kept)) == [17, 71]
    assert minimal(list(range(100)), lambda kept: True) == []


def test_a_breach_is_reported_with_a_short_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rule that a single fault breaks, in a run that meets many.

    A fault is known by its process and the number of the request that it befalls. So the seed is one in
    which the process comes to that request without the other faults, too; a change of the package may ask
    for another.
    """
    seed = 57
    script = write_script(seed)
    assert "mortal" in script.themes
    assert all(spec.kind != "killer" for spec in script.specs)
    assert all(event.what != "SIGTERM" for event in script.events)

    def ended(self: oracle.Oracle, process: Process) -> None:
        if not process.has_finished and self._agenda.now > 60:
            self.fail(oracle.DIED, process.name, "it crashed")

    monkeypatch.setattr(oracle.Oracle, "ended", ended)
    result = run(seed)
    assert len(result.script.plan.happened) > 20
    assert result.breach is not None
    smallest = shrunk(result)
    assert smallest.breach is not None
    assert smallest.breach.rule == oracle.DIED
    assert [fault.what for fault in smallest.script.plan.happened] == [CRASH]
    assert f"seed {seed} ({', '.join(result.script.themes)})" in report(smallest)


# --- mutants ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_can_be_planted(mutant: mutants.Mutant) -> None:
    """Whether they are found is for `make sim-mutants`; each patch must still fit and compile."""
    with mutants.planted(mutant) as folder:
        for patch in mutant.patches:
            compile((folder / "buquet" / patch.file).read_text(), patch.file, "exec")


def test_every_mutant_has_a_recorded_seed() -> None:
    assert sorted(mutants.recorded()) == sorted(mutant.name for mutant in mutants.MUTANTS)


def test_a_mutant_is_found_by_its_seed() -> None:
    mutant = next(mutant for mutant in mutants.MUTANTS if mutant.name == "new marker after the pending write")
    found = mutants.find(mutant, [mutants.recorded()[mutant.name]])
    assert found is not None
    assert found.rule in mutant.rules
