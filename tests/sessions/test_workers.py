"""Workers with sessions, in virtual time: what their journals hold, and what becomes of zombies."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from fleet import Line, end, record_of, sessions, start, until, worker_of
from virtual import World, requests, virtual

from buquet import RetryPolicy, connect
from buquet.monitor import Monitor
from buquet.testing.faulty import Fault, Lost, LostReply
from buquet.worker import run as run_module


@virtual
async def test_two_workers_of_one_name_are_two_sessions(world: World) -> None:
    """When one of them dies, its tasks are taken back, and the other's are left alone."""
    lines, running = [Line(), Line()], []

    async def hold(_input: Any) -> None:
        await world.clock.sleep(200)

    for line in lines:
        queue = world.queue(plan=line)
        running.append(start(worker_of(queue, hold, worker_id="worker-1", concurrency=2)))
    producer = world.queue()
    ids = [(await producer.submit("do", None, timeout_seconds=900)).id for _ in range(4)]
    await world.clock.sleep(5)
    found = sessions(world)
    assert len(found) == 2
    assert {session.worker_id for session in found.values()} == {"worker-1"}
    assert [len(session.journal) for session in found.values()] == [2, 2]
    lines[0].is_cut = True
    await world.clock.sleep(100)
    records = [record_of(world, producer, task_id) for task_id in ids]
    assert sorted(record.retry_count for record in records) == [0, 0, 1, 1]
    assert {record.status for record in records if record.retry_count == 0} == {"running"}
    await end(*running)


@virtual
async def test_short_tasks_are_never_journaled_and_cost_no_more(world: World) -> None:
    """A burst of 1,000 tasks of 0.3 s: 1 GET and 2 PUT each, all else at most 0.1 a task."""
    queue = world.queue()

    async def work(_input: Any) -> None:
        await world.clock.sleep(0.3)

    for number in range(1000):
        await queue.submit("do", number)
    journals: list[int] = []

    def plan(kind: str, key: str) -> None:
        if kind == "put" and key.startswith("workers/"):
            journals.extend(len(session.journal) for session in sessions(world).values())

    busy = world.queue(plan=plan)
    worker = worker_of(busy, work)
    running = start(worker)
    await until(world, lambda: worker.counters.completed == 1000, within_s=60)
    counts = requests(busy).counts
    assert counts["get"] + counts["put"] <= 3 * 1000 + 20
    assert counts.total() <= 3.1 * 1000
    await worker.stop()
    await running
    # A heartbeat each 10 s carries what is held just then, at most one task a slot.
    assert sum(journals) <= 2 * 16
    assert (world.keys("ready/"), world.keys("workers/")) == ([], [])


@virtual
async def test_markers_of_long_tasks_go_soon_and_in_one_batch(world: World) -> None:
    queue = world.queue()

    async def work(_input: Any) -> None:
        await world.clock.sleep(100)

    for number in range(16):
        await queue.submit("do", number)
    requests(queue).requests = asked = []
    worker = worker_of(queue, work)
    running = start(worker, with_monitor=False)
    await world.clock.sleep(0.9)
    assert len(world.keys("ready/")) == 16
    assert [len(session.journal) for session in sessions(world).values()] == [0]
    await world.clock.sleep(1 + run_module.FLUSH_S)
    assert world.keys("ready/") == []
    assert [len(session.journal) for session in sessions(world).values()] == [16]
    assert [kind for kind, _ in asked if kind.startswith("delete")] == ["delete_many"]
    await until(world, lambda: worker.counters.completed == 16, within_s=120)
    await worker.stop()
    await running
    # One created it, one carried the journal, one a heartbeat, one buried it.
    assert sum(kind == "put" and key.startswith("workers/") for kind, key in asked) <= 1 + 1 + 10 + 1


@virtual
async def test_a_marker_stays_while_its_journal_is_not_acknowledged(world: World) -> None:
    fault: Fault | None = None
    queue = world.queue(
        plan=lambda kind, key: fault if key.startswith("workers/") and kind != "list" else None
    )

    async def work(_input: Any) -> None:
        await world.clock.sleep(300)

    await queue.submit("do", None)
    worker = worker_of(queue, work)
    running = start(worker, with_monitor=False)
    await world.clock.sleep(0.5)
    fault = LostReply()
    await world.clock.sleep(60)
    assert len(world.keys("ready/")) == 1
    fault = None
    await world.clock.sleep(12)
    assert world.keys("ready/") == []
    await end(running)


@virtual
async def test_a_retry_s_new_marker_is_not_taken_for_the_claim_s(world: World) -> None:
    """The owner remembers the key that it claimed by; a long attempt that fails leaves the new one."""
    queue, attempts = world.queue(), 0

    async def work(_input: Any) -> None:
        nonlocal attempts
        attempts += 1
        await world.clock.sleep(5)
        if attempts < 3:
            raise ValueError

    policy = RetryPolicy(initial_interval_ms=20_000, jitter_percent=0)
    task = await queue.submit("do", None, retry_policy=policy)
    worker = worker_of(queue, work)
    running = start(worker)
    await world.clock.sleep(15)
    assert [key[-4:] for key in world.keys("ready/")] == ["0001"]
    await until(world, lambda: record_of(world, queue, task.id).status == "completed", within_s=200)
    await worker.stop()
    await running
    assert attempts == 3
    assert (world.keys("ready/"), world.keys("workers/")) == ([], [])


@virtual
async def test_a_zombie_drops_its_outcome_and_goes_on_as_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut off past its session, its task done by another: 412, dropped, logged, counted."""
    line, done = Line(), []

    async def slow(_input: Any) -> None:
        await world.clock.sleep(150)
        done.append("zombie")

    async def quick(_input: Any) -> None:
        done.append("other")

    zombie = worker_of(world.queue(plan=line), slow, worker_id="zombie", concurrency=2)
    running = [start(zombie, with_monitor=False)]
    producer = world.queue()
    task = await producer.submit("do", None, timeout_seconds=900)
    await until(world, lambda: world.keys("tasks/"), within_s=5)
    await world.clock.sleep(3)
    (first,) = sessions(world)
    line.fault = Lost()
    other = worker_of(world.queue(), quick, worker_id="other")
    running.append(start(other))
    await until(world, lambda: record_of(world, producer, task.id).status == "completed", within_s=60)
    assert first not in sessions(world)
    line.fault = None
    await world.clock.sleep(12)
    (again,) = (key for key, session in sessions(world).items() if session.worker_id == "zombie")
    assert again != first
    assert sessions(world)[again].journal == []
    await other.stop()
    next_task = await producer.submit("do", None, timeout_seconds=900)
    await until(world, lambda: len(world.keys("tasks/")) == 2, within_s=10)
    assert record_of(world, producer, next_task.id).worker_id == "zombie"
    await until(world, lambda: zombie.counters.lease_lost == 1, within_s=200)
    assert record_of(world, producer, task.id).attempt == 2
    assert f"task {task.id}: lease lost, outcome completed dropped" in caplog.text
    await until(world, lambda: zombie.counters.completed == 1, within_s=200)
    await zombie.stop()
    await asyncio.gather(*running)
    assert (world.keys("ready/"), world.keys("workers/")) == ([], [])


@virtual
async def test_no_claim_before_the_session_stands(world: World) -> None:
    """At the start, and again after the session was declared dead."""
    fault: Fault | None = Lost()
    first = ""
    queue = world.queue(
        plan=lambda kind, key: fault if kind == "put" and "workers/" in key and key != first else None
    )
    producer = world.queue()
    await producer.submit("do", None)
    worker = worker_of(queue)
    running = start(worker, with_monitor=False)
    await world.clock.sleep(40)
    assert world.keys("tasks/") == []
    fault = None
    await until(world, lambda: worker.counters.completed == 1, within_s=5)
    (first,) = sessions(world)
    fault = Lost()
    world.bucket.delete(first)
    await world.clock.sleep(12)
    await producer.submit("do", None)
    await world.clock.sleep(40)
    assert len(world.keys("tasks/")) == 1
    fault = None
    await until(world, lambda: worker.counters.completed == 2, within_s=5)
    await worker.stop()
    await running


@virtual
async def test_a_stop_before_the_session_stands_ends_the_run(world: World) -> None:
    queue = world.queue(plan=lambda kind, key: Lost() if "workers/" in key else None)
    for stop in ("worker", "monitor"):
        if stop == "worker":
            worker = worker_of(queue)
            running = start(worker)
            await world.clock.sleep(20)
            await asyncio.wait_for(worker.stop(), 20)
        else:
            monitor = Monitor(queue)
            running = asyncio.create_task(monitor.run())
            await world.clock.sleep(20)
            monitor.stop()
        await asyncio.wait_for(running, 20)
    assert len(asyncio.all_tasks()) == 1


@virtual
async def test_what_stays_undecided_is_left_to_the_monitors(world: World) -> None:
    """A release that no reply tells about: the session stays, with its journal, and the run ends."""
    fault: Fault | None = None
    queue = world.queue(plan=lambda kind, key: fault if key.startswith("tasks/") else None)

    async def work(_input: Any) -> None:
        await world.clock.sleep(1000)

    task = await queue.submit("do", None, timeout_seconds=2000)
    worker = worker_of(queue, work)
    running = start(worker, shutdown_timeout_s=1)
    await world.clock.sleep(5)
    fault = Lost()
    await asyncio.wait_for(worker.stop(), 60)
    await running
    (session,) = sessions(world).values()
    assert [entry.task_id for entry in session.journal] == [task.id]
    other = worker_of(world.queue())
    running = start(other)
    await until(world, lambda: record_of(world, queue, task.id).status == "completed", within_s=60)
    await world.clock.sleep(5)
    await other.stop()
    await running
    assert (world.keys("ready/"), world.keys("workers/")) == ([], [])


@pytest.mark.parametrize("cancels", [1, 2, 3])
@virtual
async def test_a_cancelled_run_leaves_no_asyncio_task(world: World, cancels: int) -> None:
    async def work(_input: Any) -> None:
        await world.clock.sleep(1000)

    queue = world.queue()
    await queue.submit("do", None, timeout_seconds=2000)
    worker = worker_of(queue, work)
    for begin in (lambda: start(worker), lambda: asyncio.create_task(Monitor(queue).run())):
        running = begin()
        await world.clock.sleep(5)
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({running})
        assert running.cancelled()
        assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancelled_run_leaves_no_thread(tmp_path: Path, cancels: int) -> None:
    """In life: the heartbeat's thread, and the connection of its own that it had."""
    before = set(threading.enumerate())
    async with connect(f"local:{tmp_path}/queue.db") as queue:

        async def work(_input: Any) -> None:
            await asyncio.sleep(100)

        await queue.submit("do", None)
        lanes = set(threading.enumerate())
        worker = worker_of(queue, work)
        running = start(worker, heartbeat_interval_s=0.2, session_ttl_s=1)
        while worker.counters.claimed == 0:
            await asyncio.sleep(0.05)
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({running})
        if cancels == 1:  # twice: it did not wait until they had ended
            async with asyncio.timeout(1):  # a thread says that it has ended just before it has
                while not set(threading.enumerate()) <= lanes:
                    await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == 1
    async with asyncio.timeout(10):
        while not set(threading.enumerate()) <= before:
            await asyncio.sleep(0.05)


@virtual
async def test_an_error_beside_the_work_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor that has died must not go unnoticed."""
    worker = worker_of(world.queue())

    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("buquet.watch.Watch._sweep", fail)
    with pytest.raises(ZeroDivisionError):
        await start(worker)
    assert world.keys("workers/") == []
