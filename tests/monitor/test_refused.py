"""One object that the store refuses stops nothing but itself; a store that is away stops the check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fleet import Line, claim, drop_marker, leave_session, record_of, sessions
from virtual import World, requests, virtual

from buquet.errors import AccessDenied, BuquetError, StoreError, Unavailable
from buquet.incarnation import Incarnation
from buquet.protocol.session import TOMBSTONE
from buquet.queue import Queue
from buquet.store.interface import Always, FenceExpired
from buquet.testing.faulty import Fault, Lost, Refused
from buquet.watch import Watch

ERRORS = [AccessDenied("no"), StoreError("no"), FenceExpired("no")]


def refusing(bad: str, error: BuquetError) -> Callable[[str, str], Fault | None]:
    return lambda _kind, key: Refused(error) if key == bad else None


def owner_of(number: int) -> Incarnation:
    return Incarnation(f"w{number}", f"w{number:032x}")


async def dead_sessions(world: World, queue: Queue, count: int, tasks: int) -> list[list[str]]:
    """Workers that crashed, each of which held some tasks; they are listed in this order."""
    return [await _dead_session(world, queue, owner_of(number), tasks) for number in range(count)]


async def _dead_session(world: World, queue: Queue, owner: Incarnation, tasks: int) -> list[str]:
    ids = [(await queue.submit("do", None, timeout_seconds=3600)).id for _ in range(tasks)]
    held = [await claim(queue, task_id, owner) for task_id in ids]
    leave_session(world, queue, *held, owner=owner)
    for one in held:
        drop_marker(world, queue, one)
    return ids


async def checks(world: World, watch: Watch, count: int) -> list[type[BuquetError]]:
    """Check some times; return the types of what was raised."""
    raised: list[type[BuquetError]] = []
    for _ in range(count):
        try:
            await watch.check("m0")
        except (StoreError, FenceExpired) as error:
            raised.append(type(error))
        await world.clock.sleep(21)
    return raised


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@virtual
async def test_a_refused_ledger_keeps_its_own_session_alone(world: World, error: BuquetError) -> None:
    queue = world.queue()
    first, second = await dead_sessions(world, queue, count=2, tasks=3)
    refused = world.queue(plan=refusing(queue.keys.ledger(first[0]), error))
    raised = await checks(world, Watch(refused.ledger, refused.store), 4)
    assert raised == [type(error)] * 2  # at the burial, and at the check after it
    states = [record_of(world, queue, task_id).status for task_id in first + second]
    assert states == ["running", *["pending"] * 5]
    assert [session.state for session in sessions(world).values()] == [TOMBSTONE]
    await checks(world, Watch(queue.ledger, queue.store), 1)
    assert record_of(world, queue, first[0]).status == "pending"
    assert sessions(world) == {}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@virtual
async def test_a_refused_session_stops_no_other_one(world: World, error: BuquetError) -> None:
    queue = world.queue()
    (first,), (second,) = await dead_sessions(world, queue, count=2, tasks=1)
    bad = world.keys("workers/")[0]
    refused = world.queue(plan=refusing(bad, error))
    assert await checks(world, Watch(refused.ledger, refused.store), 3)
    assert record_of(world, queue, first).status == "running"
    assert record_of(world, queue, second).status == "pending"
    assert list(sessions(world)) == [bad]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@virtual
async def test_a_refused_marker_does_not_end_the_sweep(world: World, error: BuquetError) -> None:
    """Leases that were never journaled are found by their markers alone."""
    queue = world.queue()
    ids = [(await queue.submit("do", None, timeout_seconds=60)).id for _ in range(4)]
    for task_id in ids:
        await claim(queue, task_id)
    first = queue.keys.parse_marker(world.keys("ready/")[0]).task_id
    refused = world.queue(plan=refusing(queue.keys.ledger(first), error))
    await world.clock.sleep(100)
    assert await checks(world, Watch(refused.ledger, refused.store), 1) == [type(error)]
    states = {task_id: record_of(world, queue, task_id).status for task_id in ids}
    assert states == dict.fromkeys(ids, "pending") | {first: "running"}


@virtual
async def test_a_store_that_is_away_ends_the_check_at_once(world: World) -> None:
    """It answers the list, then nothing: only one of ten sessions is asked for."""
    queue, line = world.queue(), Line()
    await dead_sessions(world, queue, count=10, tasks=1)
    away = world.queue(plan=lambda kind, key: line(kind, key) if kind != "list" else None)
    watch = Watch(away.ledger, away.store)
    await watch.count()
    await world.clock.sleep(31)
    line.fault = Lost()
    requests(away).requests = asked = []
    with pytest.raises(Unavailable):
        await watch.check("m0")
    assert len({key for kind, key in asked if kind == "get"}) == 1
    assert {kind for kind, _ in asked} == {"list", "get"}


@virtual
async def test_foreign_keys_do_not_hold_the_sweep(world: World) -> None:
    """More than a page of them, in front of all markers."""
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=60)
    await claim(queue, task.id)
    for number in range(1001):
        world.bucket.put(f"ready/!{number:04d}", b"", Always())
    await world.clock.sleep(100)
    await checks(world, Watch(queue.ledger, queue.store), 2)
    assert record_of(world, queue, task.id).status == "pending"
