"""The scheduler in virtual time: when it fires, what it costs, what it does after having been away.

Virtual time begins on Friday, 15 January 2027, 08:00 UTC.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from virtual import World, requests, virtual

from buquet import Queue, Scheduler, Task, Worker, WorkerRunOptions
from buquet.protocol.schedule import occurrence_id
from buquet.store.interface import Always
from buquet.testing.clock import START, run_virtual
from buquet.testing.faulty import Busy, Lost

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@contextlib.asynccontextmanager
async def scheduling(queue: Queue, interval_s: float = 60) -> AsyncIterator[None]:
    """Run a scheduler beside the block."""
    scheduler = Scheduler(queue)
    run = asyncio.create_task(scheduler.run(interval_s))
    try:
        yield
    finally:
        scheduler.stop()
        await run


async def tasks_of(queue: Queue) -> list[Task]:
    """All tasks, by the time at which they were first due."""
    tasks = [task for shard in queue.keys.shards() for task in await queue.list(shard, limit=100_000)]
    return sorted(tasks, key=lambda task: task.id)


def at(hours: float) -> datetime:
    """So many hours after the start of virtual time."""
    return datetime.fromtimestamp(START, UTC) + timedelta(hours=hours)


async def until(world: World, hours: float) -> None:
    await world.clock.sleep(hours * HOUR_S - world.clock.monotonic())


# --- on time -------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [1, 60, 3000])
@virtual
async def test_it_fires_within_a_second_whatever_the_interval(world: World, interval_s: float) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {"n": 1}, "5,10,30 * * * *", 60, 0)
    async with scheduling(world.queue(), interval_s):
        await until(world, 2)
    tasks = await tasks_of(queue)
    assert [task.available_at for task in tasks] == [at(m / 60) for m in (5, 10, 30, 65, 70, 90)]
    for task in tasks:
        assert abs(task.created_at - task.available_at) < timedelta(seconds=1)
        assert (task.input, task.timeout_seconds, task.max_retries, task.priority) == ({"n": 1}, 60, 0, 5)
    run = await queue.get_schedule_last_run("s")
    assert run is not None
    assert (run.last_task_id, run.next_run_at) == (tasks[-1].id, at(2 + 5 / 60))
    assert abs(run.last_run_at - at(1.5)) < timedelta(seconds=1)


@virtual
async def test_a_schedule_of_another_zone_fires_by_its_clocks(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "30 9 * * *", timezone="Europe/Berlin")
    async with scheduling(queue):
        await until(world, 5)
    assert [task.available_at for task in await tasks_of(queue)] == [at(0.5)]


@virtual
async def test_a_new_or_changed_schedule_is_seen_at_the_next_look(world: World) -> None:
    queue = world.queue()
    async with scheduling(world.queue(), interval_s=300):
        await until(world, 0.1)
        await queue.create_schedule("s", "do", "first", "0 * * * *")
        await until(world, 1.5)
        await queue.create_schedule("s", "do", "second", "45 * * * *", replace=True)
        await until(world, 2.5)
        await queue.delete_schedule("s")
        await until(world, 4)
    found = [(task.available_at, task.input) for task in await tasks_of(queue)]
    assert found == [(at(1), "first"), (at(1.75), "second")]


@virtual
async def test_what_is_changed_between_two_looks_is_known_when_it_fires(world: World) -> None:
    """The schedule is read again before anything is submitted."""
    queue = world.queue()
    for name in ("changed", "disabled", "deleted"):
        await queue.create_schedule(name, "do", "old", "0 * * * *")
    async with scheduling(world.queue(), interval_s=3 * HOUR_S):
        await until(world, 0.5)
        await queue.create_schedule("changed", "do", "new", "0 * * * *", replace=True)
        await queue.disable_schedule("disabled")
        await queue.delete_schedule("deleted")
        await until(world, 1.5)
    assert [task.input for task in await tasks_of(queue)] == ["new"]


@virtual
async def test_an_idle_scheduler_costs_a_list_an_interval(world: World) -> None:
    queue, watcher = world.queue(), world.queue()
    for n in range(20):
        await queue.create_schedule(f"s{n}", "do", {}, "0 0 1 1 *")
    await queue.disable_schedule("s0")
    counts = requests(watcher).counts
    async with scheduling(watcher, interval_s=60):
        await until(world, 0.01)
        counts.clear()
        await until(world, 10)
    assert set(counts) == {"list"}
    assert counts["list"] == pytest.approx(600, abs=1)


@virtual
async def test_an_occurrence_costs_two_reads_and_two_writes(world: World) -> None:
    queue, watcher = world.queue(), world.queue()
    await queue.create_schedule("s", "do", {}, "0 * * * *")
    counts = requests(watcher).counts
    async with scheduling(watcher, interval_s=60):
        await until(world, 0.01)
        counts.clear()
        await until(world, 10.5)
    del counts["list"]
    assert counts == {"get": 20, "put": 20}


# --- not for the past ------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
@virtual
async def test_nothing_fires_for_the_past(world: World, catch_up: str) -> None:
    """Neither of a new schedule, nor of one that is replaced, or disabled and enabled."""
    queue = world.queue()
    await until(world, 0.001)
    await queue.create_schedule("s", "do", {}, "0 * * * *", catch_up=catch_up)
    async with scheduling(world.queue(), interval_s=60):
        await until(world, 0.9)
        await queue.create_schedule("s", "do", {}, "*/30 * * * *", catch_up=catch_up, replace=True)
        assert await tasks_of(queue) == []
        await until(world, 1.2)
        await queue.disable_schedule("s")
        await until(world, 3.2)
        await queue.enable_schedule("s")
        await until(world, 4.2)
    assert [task.available_at for task in await tasks_of(queue)] == [at(1), at(3.5), at(4)]


@virtual
async def test_nothing_fires_for_the_past_of_a_scheduler_that_was_away(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("replaced", "do", {}, "0 * * * *", catch_up="all")
    await queue.create_schedule("enabled", "do", {}, "0 * * * *", catch_up="all")
    await queue.disable_schedule("enabled")
    await until(world, 5.5)
    await queue.create_schedule("replaced", "do", {}, "1 * * * *", catch_up="all", replace=True)
    await queue.enable_schedule("enabled")
    async with scheduling(world.queue()):
        await until(world, 5.9)
    assert await tasks_of(queue) == []


# --- missed occurrences ----------------------------------------------------------------------

MISSED = {"latest": [at(5)], "all": [at(n) for n in (2, 3, 4, 5)], "none": []}


@pytest.mark.parametrize("catch_up", MISSED)
@virtual
async def test_missed_occurrences(world: World, catch_up: str) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "0 * * * *", catch_up=catch_up)
    async with scheduling(world.queue()):
        await until(world, 1.5)
    await until(world, 5.5)
    async with scheduling(world.queue()):
        await until(world, 6.5)
    found = [task.available_at for task in await tasks_of(queue)]
    assert found == [at(1), *MISSED[catch_up], at(6)]


def test_all_missed_ones_are_submitted_in_order() -> None:
    async def scenario(clock: Any) -> None:
        world = World(clock)
        queue = world.queue()
        log = requests(queue)
        await queue.create_schedule("s", "do", {}, "* * * * *", catch_up="all")
        await until(world, 30)
        log.requests = []
        async with scheduling(queue):
            await until(world, 30.001)
        puts = [key for kind, key in log.requests if kind == "put"]
        markers = [key.split("/")[-1] for key in puts if key.startswith("ready/")]
        assert len(markers) == 30 * 60
        assert markers == sorted(markers)
        # A thousand at a time; what was done is noted in between.
        assert [n for n, key in enumerate(puts) if key.startswith("schedule-runs/")] == [1000, 1801]

    run_virtual(scenario)


def test_none_older_than_seven_days_is_submitted() -> None:
    async def scenario(clock: Any) -> None:
        world = World(clock)
        queue = world.queue()
        await queue.create_schedule("s", "do", {}, "0 9 * * *", catch_up="all")
        await queue.create_schedule("late", "do", {}, "0 9 16 1 *")
        await clock.sleep(9.5 * DAY_S)
        async with scheduling(queue):
            await clock.sleep(60)
        # From the 15th to the 24th it was due ten times; it is the 24th, 20:00.
        assert [task.available_at.day for task in await tasks_of(queue)] == [*range(18, 25)]

    run_virtual(scenario)


@virtual
async def test_a_long_sleep_misses_nothing_that_falls_into_a_submission(world: World) -> None:
    """The store is slow: while one occurrence is written, the next one becomes due."""
    from buquet.testing.faulty import Slow

    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "* * * * *")
    slow = world.queue(plan=lambda kind, key: Slow(35) if key.startswith("ready/") else None)
    async with scheduling(slow):
        await until(world, 0.5)
    assert len(await tasks_of(queue)) == 29


# --- overlap -------------------------------------------------------------------------------


async def _work(queue: Queue, seconds: float) -> None:
    worker = Worker(queue)

    @worker.task("do")
    async def do(_input: object) -> None:
        await queue.clock.sleep(seconds)

    await worker.run(WorkerRunOptions(with_monitor=False))


@virtual
async def test_an_occurrence_is_left_out_while_the_last_task_goes_on(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "*/10 * * * *", 3600, overlap="skip")
    work = asyncio.create_task(_work(world.queue(), 25 * MINUTE_S))
    async with scheduling(world.queue()), scheduling(world.queue()):
        await until(world, 1.7)
    tasks = await tasks_of(queue)
    assert [task.available_at for task in tasks] == [at(m / 60) for m in (10, 40, 70, 100)]
    assert [task.status for task in tasks] == ["completed", "completed", "completed", "running"]
    work.cancel()
    await asyncio.wait({work})


@virtual
async def test_overlapping_is_allowed_by_default(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "*/10 * * * *")
    async with scheduling(world.queue()):
        await until(world, 1.1)
    assert len(await tasks_of(queue)) == 6


@virtual
async def test_a_task_whose_submitter_crashed_before_it_was_noted_is_waited_for(world: World) -> None:
    queue, crashing = world.queue(), world.queue()
    await queue.create_schedule("s", "do", {}, "*/10 * * * *", overlap="skip")
    await until(world, 0.17)
    loaded = await queue.schedules.require("s")

    def crash(kind: str, key: str) -> None:
        if (kind, key[:6]) == ("put", "ready/"):
            crashing.store.once._store.plan = die  # type: ignore[attr-defined]

    def die(_kind: str, _key: str) -> None:
        raise SystemExit

    crashing.store.once._store.plan = crash  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):
        await crashing.schedules.fire(loaded.definition, read_at=loaded.read_at, late_ms=0)
    (task,) = await tasks_of(queue)
    assert await queue.get_schedule_last_run("s") is None
    await until(world, 0.34)
    async with scheduling(world.queue()):
        await until(world, 0.4)
    assert await tasks_of(queue) == [task]
    run = await queue.get_schedule_last_run("s")
    assert run is not None
    assert run.last_task_id == task.id


# --- trouble -------------------------------------------------------------------------------


@virtual
async def test_a_broken_schedule_does_not_stop_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    queue = world.queue()
    bodies = {"a": b"{", "b": b'{"v": 2}', "c": b'{"v": 1, "cron": "no"}', "z": b"\xff\xfe"}
    for name, body in bodies.items():
        await queue.store.put(f"schedules/{name}.json", body, Always())
    await queue.create_schedule("m", "do", {}, "0 * * * *")
    await queue.create_schedule("n", "do", {}, "0 * * * *")
    await queue.store.put("schedule-runs/m.json", b"{", Always())
    await queue.store.put("schedule-runs/n.json", b'{"v": 2}', Always())
    async with scheduling(world.queue()):
        await until(world, 2.5)
        await queue.delete_schedule("z")
        await queue.create_schedule("a", "do", "mended", "0 * * * *", replace=True)
        await until(world, 3.5)
    found = [(task.available_at, task.input) for task in await tasks_of(queue)]
    assert found[:2] == [(at(1), {}), (at(2), {})]
    assert {str(given): due for due, given in found[2:]} == {"{}": at(3), "mended": at(3)}
    told = [record.message for record in caplog.records if record.name == "buquet.scheduler"]
    assert len([message for message in told if "left alone" in message]) == 5, "each once"


@virtual
async def test_an_outage_delays_but_does_not_lose(world: World, caplog: pytest.LogCaptureFixture) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "0 * * * *")

    def plan(_kind: str, _key: str) -> Lost | Busy | None:
        hour = world.clock.monotonic() / HOUR_S
        return (Lost() if hour < 1.2 else Busy()) if 0.9 < hour < 1.4 or 2.9 < hour < 3.1 else None

    async with scheduling(world.queue(plan=plan)):
        await until(world, 4.5)
    tasks = await tasks_of(queue)
    assert [task.available_at for task in tasks] == [at(n) for n in (1, 2, 3, 4)]
    assert tasks[0].created_at < at(1.43)
    assert "will be tried again" in caplog.text
    assert "not listed" in caplog.text


@pytest.mark.parametrize("interval_s", [0, -1, float("nan"), float("inf")])
@virtual
async def test_an_interval_that_makes_no_sense(world: World, interval_s: float) -> None:
    scheduler = Scheduler(world.queue())
    with pytest.raises(ValueError, match="interval_s"):
        await scheduler.run(interval_s)
    with pytest.raises(TypeError, match="interval_s"):
        await scheduler.run("60")  # type: ignore[arg-type]


# --- an occurrence that comes late -----------------------------------------------------------


def test_a_latecomer_makes_garbage_of_a_task_that_has_ended() -> None:
    """Its marker was deleted, so it can be made again; the ledger tells that nothing is to be done."""

    async def scenario(clock: Any) -> None:
        world = World(clock)
        queue, late = world.queue(), world.queue()
        runs: list[object] = []
        await queue.create_schedule("s", "do", {}, "0 * * * *")
        await until(world, 1.001)
        loaded = await queue.schedules.require("s")
        await queue.schedules.fire(loaded.definition, read_at=loaded.read_at, late_ms=0)
        await _run_all(queue, runs)
        (done,) = await tasks_of(queue)
        assert (done.status, runs, world.keys("ready/")) == ("completed", [{}], [])
        # What the other one had noted is out of sight; it is six days later.
        await queue.store.delete("schedule-runs/s.json", read_at=clock.monotonic())
        for _ in range(2):
            loaded = await late.schedules.require("s")
            definition = loaded.definition
            at_ms = int(at(1).timestamp() * 1000)
            await late.schedules._submit(definition, [at_ms], read_at=loaded.read_at)
            assert len(world.keys("ready/")) == 1, "the marker was made again"
            await _run_all(queue, runs)
            assert (runs, world.keys("ready/")) == ([{}], [])
            assert await tasks_of(queue) == [done]
            await clock.sleep(6 * DAY_S - HOUR_S)

    run_virtual(scenario)


async def _run_all(queue: Queue, runs: list[object]) -> None:
    worker = Worker(queue)

    @worker.task("do")
    async def do(given: object) -> None:
        runs.append(given)

    burst = asyncio.create_task(worker.run(WorkerRunOptions(with_monitor=False)))
    await queue.clock.sleep(30)
    await worker.stop()
    await burst


def test_an_occurrence_that_was_archived_and_removed_does_not_come_back() -> None:
    """A scheduler that knows nothing of the last run leaves alone what is older than 7 days."""
    from buquet.archiver import LEAST_RETENTION_S, Archiver

    async def scenario(clock: Any) -> None:
        world = World(clock)
        queue, runs = world.queue(), []
        await queue.create_schedule("s", "do", {}, "0 9 15 1 *", catch_up="all")
        await until(world, 1.001)
        loaded = await queue.schedules.require("s")
        await queue.schedules.fire(loaded.definition, read_at=loaded.read_at, late_ms=0)
        await _run_all(queue, runs)
        (done,) = await tasks_of(queue)
        await queue.archive(done.id)
        archiver = Archiver(queue.ledger, queue.store, retention_s=LEAST_RETENTION_S)
        forgetful = world.queue()
        while world.keys("tasks/"):
            assert clock.monotonic() < 8 * DAY_S
            await archiver.sweep()
            await queue.store.delete("schedule-runs/s.json", read_at=clock.monotonic())
            loaded = await forgetful.schedules.require("s")
            await forgetful.schedules.fire(loaded.definition, read_at=loaded.read_at, late_ms=0)
            await _run_all(queue, runs)
            await clock.sleep(DAY_S if clock.monotonic() < 7 * DAY_S else 600)
        removed_s = clock.monotonic()
        assert removed_s > LEAST_RETENTION_S
        async with scheduling(forgetful):
            await clock.sleep(2 * DAY_S)
        assert (runs, world.keys("tasks/"), world.keys("ready/")) == ([{}], [], [])

    run_virtual(scenario)


@virtual
async def test_a_scheduler_that_stood_still_reads_the_schedule_again(world: World) -> None:
    """What was read more than five minutes ago creates nothing (rule 3)."""
    from buquet.store.interface import FenceExpired

    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "0 * * * *")
    await until(world, 1.001)
    loaded = await queue.schedules.require("s")
    await world.clock.sleep(301)
    with pytest.raises(FenceExpired):
        await queue.schedules.fire(loaded.definition, read_at=loaded.read_at, late_ms=0)
    assert await tasks_of(queue) == []


# --- beside a worker, and as a process ---------------------------------------------------------


@virtual
async def test_a_worker_can_run_the_scheduler_too(world: World) -> None:
    queue = world.queue()
    runs: list[str] = []
    worker = Worker(world.queue())

    @worker.task("do")
    async def do(_input: object, ctx: Any) -> None:
        runs.append(ctx.task_id)

    await queue.create_schedule("s", "do", {}, "*/10 * * * *")
    run = asyncio.create_task(worker.run(WorkerRunOptions(with_scheduler=True)))
    await until(world, 0.55)
    await worker.stop()
    await run
    times = [int(at(m / 60).timestamp() * 1000) for m in (10, 20, 30)]
    assert runs == [occurrence_id("s", at_ms) for at_ms in times]


SCRIPT = """
import asyncio, sys
from buquet import Scheduler, connect

async def main():
    queue = await connect(sys.argv[1])
    print("begins", flush=True)
    await Scheduler(queue).run(interval_s=0.2)
    print("ended", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_process_in_good_order(number: signal.Signals, tmp_path: Path) -> None:
    endpoint = f"local:{tmp_path}/queue.db"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), endpoint),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begins\n"
    await asyncio.sleep(0.5)
    os.kill(process.pid, number)
    printed, complaints = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, printed, complaints) == (0, b"ended\n", b"")
