"""The monitor brings back what crashed workers held: how soon, and however it is itself disturbed."""

from __future__ import annotations

import asyncio
import random

import pytest
from fleet import (
    FOR_EVER,
    OWNER,
    Line,
    claim,
    drop_marker,
    end,
    leave_session,
    record_of,
    sessions,
    start,
    until,
    worker_of,
)
from virtual import World, virtual

from buquet.incarnation import Incarnation
from buquet.monitor import Monitor
from buquet.protocol.keys import Keys
from buquet.protocol.session import TOMBSTONE, Entry
from buquet.queue import Queue
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.faulty import Busy, Fault, LostReply, Slow
from buquet.watch import Watch

RECOVERED_WITHIN_S = 45


async def dead_session(world: World, queue: Queue, count: int = 3, owner: Incarnation = OWNER) -> list[str]:
    """A worker has claimed tasks, journaled them, deleted their markers, and crashed."""
    ids = [(await queue.submit("do", number, timeout_seconds=3600)).id for number in range(count)]
    held = [await claim(queue, task_id, owner) for task_id in ids]
    leave_session(world, queue, *held, owner=owner)
    for one in held:
        drop_marker(world, queue, one)
    return ids


def statuses(world: World, queue: Queue, ids: list[str]) -> set[str]:
    return {record_of(world, queue, task_id).status for task_id in ids}


# --- how soon ------------------------------------------------------------------------------


async def crash_among(
    clock: VirtualClock, seed: int, *, workers: int, acting: bool, at_once: bool, resolution_ms: int
) -> float:
    """Crash one of several workers at a moment of the seed's; return how long until its task is free."""
    world, chance = World(clock), random.Random(seed)
    lines, running = [Line() for _ in range(workers)], []

    async def hold(_input: object) -> None:
        await clock.sleep(10_000)

    for line in lines:
        queue = world.queue(plan=line, resolution_ms=resolution_ms)
        running.append(start(worker_of(queue, hold, worker_id=f"w{len(running)}", concurrency=4)))
        await clock.sleep(chance.uniform(0, 20))
    producer = world.queue()
    task = await producer.submit("do", None, timeout_seconds=3600)
    await until(world, lambda: world.keys("tasks/"), within_s=60)
    owner = int((record_of(world, producer, task.id).worker_id or "")[1:])
    victims = {owner, 0} if acting else {owner}
    if not at_once:
        await clock.sleep(chance.uniform(2.5, 40))
    assert len(world.keys("ready/")) == at_once
    for victim in victims:
        lines[victim].is_cut = True
    took_s = await until(world, lambda: record_of(world, producer, task.id).retry_count == 1, within_s=120)
    await end(*running)
    return took_s


@pytest.mark.parametrize("at_once", [False, True], ids=["journaled", "at once"])
@pytest.mark.parametrize("seed", range(30))
def test_a_dead_worker_s_tasks_are_free_within_45_s(seed: int, at_once: bool) -> None:
    """With any offset of heartbeats and checks; also when the monitor whose turn it is dies with it.

    A lease that was never journaled, because its worker crashed at once, is found by its marker.
    """
    took_s = run_virtual(
        lambda clock: crash_among(
            clock,
            seed,
            workers=2 + seed % 4,
            acting=seed % 2 == 1,
            at_once=at_once,
            resolution_ms=1000 if seed % 3 == 0 else 1,
        ),
        seed,
    )
    assert 19 < took_s <= RECOVERED_WITHIN_S


@virtual
async def test_a_monitor_that_starts_later_recovers_within_45_s(world: World) -> None:
    queue = world.queue()
    ids = await dead_session(world, queue)
    await world.clock.sleep(1000)
    running = asyncio.create_task(Monitor(queue, "m").run())
    took_s = await until(world, lambda: statuses(world, queue, ids) == {"pending"}, within_s=60)
    # It must see the session's ETag unchanged for 20 s before it believes that it is dead.
    assert 20 <= took_s <= RECOVERED_WITHIN_S
    await world.clock.sleep(60)
    assert len(world.keys("workers/")) == 1  # its own
    await end(running)


@pytest.mark.parametrize("shard_prefix_len", [1, 2, 3, 4])
@virtual
async def test_every_length_of_shards(world: World, shard_prefix_len: int) -> None:
    queue = world.queue(Keys("a/b/", shard_prefix_len))
    ids = await dead_session(world, queue)
    watch = Watch(queue.ledger, queue.store)
    for _ in range(3):
        await watch.check("m0")
        await world.clock.sleep(20)
    for task_id in ids:
        task = await queue.get(task_id)
        assert task is not None
        assert (task.status, task.retry_count, task.attempt) == ("pending", 1, 1)
        assert task.last_error == "WorkerLost: worker crashed was lost while it ran attempt 1"
    assert world.keys("a/b/workers/") == []
    assert len(world.keys("a/b/ready/")) == 3


@virtual
async def test_what_was_recovered_runs_and_nothing_is_left(world: World) -> None:
    queue = world.queue()
    ids = await dead_session(world, queue, 20)
    worker = worker_of(queue)
    running = start(worker)
    await until(world, lambda: statuses(world, queue, ids) == {"completed"}, within_s=60)
    await world.clock.sleep(5)
    await worker.stop()
    await running
    assert (world.keys("ready/"), world.keys("workers/")) == ([], [])
    assert {record_of(world, queue, task_id).attempt for task_id in ids} == {2}


@virtual
async def test_retries_used_up_end_in_failed(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=3600, max_retries=0)
    held = await claim(queue, task.id)
    leave_session(world, queue, held)
    drop_marker(world, queue, held)
    watch = Watch(queue.ledger, queue.store)
    for _ in range(3):
        await watch.check("m0")
        await world.clock.sleep(20)
    failed = await queue.get(task.id)
    assert failed is not None
    assert (failed.status, failed.retry_count) == ("failed", 0)
    assert failed.last_error == "WorkerLost: worker crashed was lost while it ran attempt 1"
    assert [one.id for one in await queue.list_failed()] == [task.id]
    assert world.keys("ready/") == []


@virtual
async def test_a_long_journal_is_not_settled_one_by_one(world: World) -> None:
    """400 entries of three requests each: at 50 ms one after the other they would take a minute."""
    queue = world.queue()
    ids = await dead_session(world, queue, 400)
    slow = world.queue(plan=lambda _kind, _key: Slow(0.05))
    watch = Watch(slow.ledger, slow.store)
    for _ in range(2):
        await watch.check("m0")
        await world.clock.sleep(16)
    began = world.clock.monotonic()
    await watch.check("m0")
    assert world.clock.monotonic() - began < 400 * 3 * 0.05 / 10
    assert statuses(world, queue, ids) == {"pending"}
    assert world.keys("workers/") == []


# --- the tombstone -------------------------------------------------------------------------


@virtual
async def test_the_tombstone_comes_first_and_goes_last(world: World) -> None:
    """Frozen before anything is taken back, deleted when nothing is left of its journal."""
    queue, seen = world.queue(), []
    ids = await dead_session(world, queue)

    def note(kind: str, key: str) -> None:
        if kind in {"put", "delete", "delete_many"}:
            state = [session.state for session in sessions(world).values()]
            seen.append((kind, key.partition("/")[0], state, statuses(world, queue, ids)))

    watch_queue = world.queue(plan=note)
    watch = Watch(watch_queue.ledger, watch_queue.store)
    for _ in range(3):
        await watch.check("m0")
        await world.clock.sleep(20)
    writes = [(kind, where) for kind, where, _, _ in seen]
    assert writes == [
        ("put", "workers"),
        *[("put", "ready")] * 3,
        *[("put", "tasks")] * 3,
        ("delete", "workers"),
    ]
    assert seen[0][2:] == (["live"], {"running"})
    assert {tuple(state) for _, _, state, _ in seen[1:]} == {(TOMBSTONE,)}
    assert seen[-1][3] == {"pending"}


@pytest.mark.parametrize("last", [FOR_EVER, LostReply()])
@virtual
async def test_killed_at_any_request_the_next_one_finishes(world: World, last: Fault) -> None:
    """For each n: one monitor is killed at its request n, before it is served or before its reply."""
    for n in range(100):
        keys = Keys(f"{n}/")
        queue = world.queue(keys)
        ids = await dead_session(world, queue)
        line = Line(cut_after=n, last=last)
        doomed = world.queue(keys, plan=line)
        killed = asyncio.create_task(_check_thrice(world, Watch(doomed.ledger, doomed.store)))
        await world.clock.sleep(65)
        await end(killed)
        await _check_thrice(world, Watch(queue.ledger, queue.store))
        assert statuses(world, queue, ids) == {"pending"}, n
        assert {record_of(world, queue, task_id).retry_count for task_id in ids} == {1}, n
        assert world.keys(f"{n}/workers/") == [], n
        assert len(world.keys(f"{n}/ready/")) == 3, n
        if not line.is_cut:
            break
    # Three checks of two LISTs; two reads of the session, its burial and end; three requests a task.
    assert 3 * 2 + 4 + 3 * 3 <= n < 50


async def _check_thrice(world: World, watch: Watch) -> None:
    for _ in range(3):
        await watch.check("m0")
        await world.clock.sleep(21)


@virtual
async def test_any_number_at_once(world: World) -> None:
    """Eight that all act at the same moment: each task is taken back once."""
    queue = world.queue()
    ids = await dead_session(world, queue, 20)
    queues = [world.queue() for _ in range(8)]
    watches = [Watch(one.ledger, one.store) for one in queues]
    for _ in range(3):
        await asyncio.gather(*(watch.check(f"m{number}") for number, watch in enumerate(watches)))
        await world.clock.sleep(20)
    assert statuses(world, queue, ids) == {"pending"}
    assert {record_of(world, queue, task_id).retry_count for task_id in ids} == {1}
    assert len(world.keys("ready/")) == 20
    assert world.keys("workers/") == []


@virtual
async def test_a_tombstone_of_another_monitor_is_finished_at_the_first_check(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=3600)
    held = await claim(queue, task.id)
    leave_session(world, queue, held, state=TOMBSTONE)
    drop_marker(world, queue, held)
    await Watch(queue.ledger, queue.store).check("m0")
    assert statuses(world, queue, [task.id]) == {"pending"}
    assert world.keys("workers/") == []


@virtual
async def test_an_entry_that_is_settled_already_is_left_alone(world: World) -> None:
    """The task is running under another lease than the one that the journal lists."""
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=3600)
    held = await claim(queue, task.id)
    leave_session(
        world, queue, journal=[Entry(task.id, "f" * 32, held.record.lease_expires_at or "")], state=TOMBSTONE
    )
    before = world.bucket.get(queue.keys.ledger(task.id))
    await Watch(queue.ledger, queue.store).check("m0")
    assert world.bucket.get(queue.keys.ledger(task.id)) == before
    assert world.keys("workers/") == []


# --- leases that are past ------------------------------------------------------------------


@virtual
async def test_an_expired_lease_in_a_live_session_is_taken_back(world: World) -> None:
    """Its worker beats on, but the handler hangs past its lease."""
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=60)
    held = await claim(queue, task.id)
    drop_marker(world, queue, held)
    watch = Watch(queue.ledger, queue.store)
    taken_at = None
    for number in range(50):
        leave_session(world, queue, held, rev=number)
        await watch.check("m0")
        if taken_at is None and statuses(world, queue, [task.id]) == {"pending"}:
            taken_at = world.clock.monotonic()
        await world.clock.sleep(2)
    assert taken_at is not None
    assert 75 <= taken_at <= 78
    assert len(sessions(world)) == 1
    assert record_of(world, queue, task.id).retry_count == 1


@virtual
async def test_an_expired_lease_that_was_never_journaled_is_found_by_its_marker(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=60)
    await claim(queue, task.id)
    leave_session(world, queue)
    watch = Watch(queue.ledger, queue.store)
    for _ in range(5):
        await watch.check("m0")
        await world.clock.sleep(20)
    assert statuses(world, queue, [task.id]) == {"pending"}


@virtual
async def test_a_busy_store_does_not_stop_a_recovery(world: World) -> None:
    queue = world.queue()
    ids = await dead_session(world, queue)
    chance = random.Random(1)
    line = Line()
    disturbed = world.queue(plan=lambda kind, key: Busy() if chance.random() < 0.3 else line(kind, key))
    watch = Watch(disturbed.ledger, disturbed.store)
    for _ in range(12):
        try:
            await watch.check("m0")
        except ConnectionError:
            pass
        await world.clock.sleep(15)
    assert statuses(world, queue, ids) == {"pending"}
    assert world.keys("workers/") == []
