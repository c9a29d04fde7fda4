"""Nobody is buried alive: what must be seen before a session is declared dead, and whose turn it is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from fleet import (
    Line,
    claim,
    drop_marker,
    leave_session,
    record_of,
    sessions,
    start,
    until,
    worker_of,
)
from virtual import World, requests, virtual

from buquet.errors import AccessDenied, StoreError
from buquet.incarnation import Incarnation
from buquet.protocol.session import LIVE, TOMBSTONE
from buquet.queue import Queue
from buquet.store.interface import Always, Page
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.faulty import Fault, Late, Lost, LostReply, Refused
from buquet.watch import Watch


def watch_of(queue: Queue) -> Watch:
    return Watch(queue.ledger, queue.store)


def state(world: World) -> str | None:
    found = list(sessions(world).values())
    return found[0].state if found else None


# --- outages -------------------------------------------------------------------------------


async def outage(clock: VirtualClock, seed: int, fault: Fault) -> None:
    world, chance = World(clock), random.Random(seed)
    lines, workers, running = [Line() for _ in range(4)], [], []

    async def hold(_input: object) -> None:
        await clock.sleep(300)

    for line in lines:
        queue = world.queue(plan=line)
        workers.append(worker_of(queue, hold, worker_id=f"w{len(workers)}", concurrency=2))
        running.append(start(workers[-1]))
        await clock.sleep(chance.uniform(0, 15))
    producer = world.queue()
    ids = [(await producer.submit("do", None, timeout_seconds=3600)).id for _ in range(4)]
    await clock.sleep(chance.uniform(20, 40))
    before = set(sessions(world))
    assert len(before) == 4
    for line in lines:
        line.fault = fault
    await clock.sleep(120)
    for line in lines:
        line.fault = None
    await clock.sleep(90)
    assert set(sessions(world)) == before
    assert {record_of(world, producer, task_id).attempt for task_id in ids} == {1}
    await until(
        world, lambda: all(record_of(world, producer, i).status == "completed" for i in ids), within_s=200
    )
    assert sum(worker.counters.lease_lost for worker in workers) == 0
    for worker in workers:
        await worker.stop()
    await asyncio.gather(*running)
    assert (world.keys("workers/"), world.keys("ready/")) == ([], [])


@pytest.mark.parametrize("fault", [Lost(), LostReply(), Late(20)], ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("seed", range(6))
def test_an_outage_of_the_store_buries_nobody(seed: int, fault: Fault) -> None:
    """For two minutes every session looks stale; afterwards each task goes on where it was."""
    run_virtual(lambda clock: outage(clock, seed, fault), seed)


@pytest.mark.parametrize("fault", [Lost(), Refused(AccessDenied("no", key="workers/"))])
@virtual
async def test_a_listing_that_failed_breaks_the_row(world: World, fault: Fault) -> None:
    line = Line()
    queue = world.queue(plan=line)
    leave_session(world, queue)
    watch = watch_of(queue)
    await world.clock.sleep(12)
    await watch.check("m0")
    await world.clock.sleep(10)
    line.fault = fault
    with pytest.raises(StoreError):
        await watch.check("m0")
    line.fault = None
    await world.clock.sleep(11)
    for _ in range(2):  # stale, and seen twice 20 s apart, but not in one row
        await watch.check("m0")
        assert state(world) == LIVE
        await world.clock.sleep(10)
    await watch.check("m0")
    assert state(world) is None


@virtual
async def test_the_date_of_a_listing_alone_is_not_believed(world: World) -> None:
    """A GET must confirm the age by its own: servers behind one address may disagree."""
    queue = world.queue()
    leave_session(world, queue)
    honest = queue.store.once.list

    async def ahead(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        page = await honest(prefix, after=after, limit=limit)
        return page._replace(date_ms=page.date_ms + 60_000)

    queue.store.once.list = ahead  # type: ignore[method-assign]
    watch = watch_of(queue)
    for _ in range(2):
        await watch.check("m0")
        assert state(world) == LIVE
        await world.clock.sleep(21)
    await watch.check("m0")
    assert state(world) is None


@virtual
async def test_a_monitor_that_slept_has_seen_nothing(world: World) -> None:
    """A whole host that was suspended: its monitor wakes before the heartbeats do."""
    queue = world.queue()
    leave_session(world, queue)
    watch = watch_of(queue)
    await watch.check("m0")
    await world.clock.sleep(600)
    for _ in range(3):
        await watch.check("m0")
        assert state(world) == LIVE
        await world.clock.sleep(6)
    leave_session(world, queue)  # there it beats
    for _ in range(4):
        await watch.check("m0")
        assert state(world) == LIVE
        await world.clock.sleep(7)


@virtual
async def test_twenty_seconds_must_lie_between_the_listings(world: World) -> None:
    queue = world.queue()
    leave_session(world, queue)
    await world.clock.sleep(500)
    watch = watch_of(queue)
    for _ in range(20):
        await watch.check("m0")
        assert state(world) == LIVE
        await world.clock.sleep(1)
    await watch.check("m0")
    assert state(world) is None


@virtual
async def test_a_session_that_changes_is_never_buried(world: World) -> None:
    """Its heartbeats come late, every 29 s, and each listing shows another ETag."""
    queue = world.queue()
    watch = watch_of(queue)
    for second in range(29 * 20):
        if second % 29 == 0:
            leave_session(world, queue)
        await watch.check("m0")
        await world.clock.sleep(1)
    assert state(world) == LIVE


@pytest.mark.parametrize("kind", ["get", "put"])
@virtual
async def test_a_heartbeat_at_the_last_moment_counts(world: World, kind: str) -> None:
    """Before the GET that confirms the death, and between it and the tombstone."""
    beaten = 0

    def beat(asked: str, key: str) -> None:
        nonlocal beaten
        if key.startswith("workers/") and asked == kind and world.clock.monotonic() > 30:
            beaten += 1
            if beaten == 1:
                leave_session(world, world.queue())

    queue = world.queue(plan=beat)
    leave_session(world, queue)
    watch = watch_of(queue)
    for _ in range(3):
        await watch.check("m0")
        await world.clock.sleep(16)
    assert beaten >= 1
    assert state(world) == LIVE


@pytest.mark.parametrize(("lifetime_s", "buried_after_s"), [(3, (3, 5)), (30, (30, 32)), (300, (300, 303))])
@virtual
async def test_a_session_has_its_own_lifetime(
    world: World, lifetime_s: float, buried_after_s: tuple[float, float]
) -> None:
    queue = world.queue()
    leave_session(world, queue, lifetime_s=lifetime_s)
    watch = watch_of(queue)
    while state(world) == LIVE:
        await watch.check("m0")
        await world.clock.sleep(watch.next_check_s(15))
    least, most = buried_after_s
    assert least <= world.clock.monotonic() - watch.next_check_s(15) <= most + 15


@pytest.mark.parametrize("jump_s", [3600, -3600, 40])
@virtual
async def test_a_jump_of_the_store_s_clock_buries_nobody(world: World, jump_s: float) -> None:
    server = VirtualClock(world.clock.loop)
    world.bucket._clock = server
    workers = [worker_of(world.queue(), worker_id=f"w{number}") for number in range(3)]
    running = [start(worker) for worker in workers]
    await world.clock.sleep(33)
    before = set(sessions(world))
    server.skew_s = jump_s
    await world.clock.sleep(100)
    assert set(sessions(world)) == before
    for worker in workers:
        await worker.stop()
    await asyncio.gather(*running)


# --- whose turn it is ----------------------------------------------------------------------


@virtual
async def test_what_idle_monitors_cost(world: World) -> None:
    """Acting: two LISTs a check. The others: one, and two at every fourth. Nobody reads anything."""
    queues = [world.queue() for _ in range(4)]
    workers = [worker_of(queue, worker_id=f"w{number}", shards=["0"]) for number, queue in enumerate(queues)]
    running = [start(worker, poll_interval_ms=600_000) for worker in workers]
    await world.clock.sleep(120)
    for queue in queues:
        requests(queue).counts.clear()
    await world.clock.sleep(600)
    lists = [requests(queue).counts["list"] for queue in queues]
    checks = 600 / 15
    assert 2 * checks - 4 <= lists[0] <= 2 * checks + 6
    for others in lists[1:]:
        assert others <= 1.25 * checks + 4
    assert sum(requests(queue).counts["get"] for queue in queues) <= 4
    for worker in workers:
        await worker.stop()
    await asyncio.gather(*running)


@virtual
async def test_a_session_with_leases_costs_a_get_a_check(world: World) -> None:
    async def hold(_input: object) -> None:
        await world.clock.sleep(10_000)

    queues = [world.queue() for _ in range(3)]
    workers = [worker_of(queue, hold, worker_id=f"w{n}", concurrency=2) for n, queue in enumerate(queues)]
    running = [start(worker, poll_interval_ms=600_000) for worker in workers]
    for _ in range(6):
        await world.queue().submit("do", None, timeout_seconds=20_000)
    await world.clock.sleep(120)
    assert all(len(session.journal) == 2 for session in sessions(world).values())
    for queue in queues:
        requests(queue).counts.clear()
    await world.clock.sleep(600)
    checks = 600 / 15
    gets = [requests(queue).counts["get"] for queue in queues]
    assert 2 * checks <= gets[0] <= 3 * checks + 6
    assert all(others <= 3 * checks / 4 + 6 for others in gets[1:])
    for task in running:
        task.cancel()
    await asyncio.wait(running)


@virtual
async def test_of_one_name_only_the_newest_counts(world: World) -> None:
    """A worker that is killed and restarted leaves live-looking sessions with smaller keys."""
    queue = world.queue()
    for number in range(3):
        leave_session(world, queue, owner=Incarnation("same", f"m{number:032x}"))
        await world.clock.sleep(1)
    watch = watch_of(queue)
    await watch.check(f"m{2:032x}")
    requests(queue).counts.clear()
    await watch.check(f"m{2:032x}")
    assert requests(queue).counts["list"] == 2
    await watch.check(f"m{0:032x}")
    assert requests(queue).counts["list"] == 3


@virtual
async def test_live_sessions_are_counted_for_the_choice_of_tasks(world: World) -> None:
    queue = world.queue()
    for number in range(5):
        leave_session(world, queue, owner=Incarnation(f"w{number}", f"w{number:032x}"))
    leave_session(world, queue, owner=Incarnation("gone", f"w{9:032x}"), state=TOMBSTONE)
    watch = watch_of(queue)
    await watch.count()
    assert watch.live_sessions in {5, 6}  # it has read none of them
    await world.clock.sleep(31)
    leave_session(world, queue, owner=Incarnation("new", f"w{7:032x}"))
    await watch.count()
    assert watch.live_sessions == 1


@virtual
async def test_a_worker_without_a_monitor_counts_them_too(world: World) -> None:
    queue = world.queue()
    for number in range(5):
        leave_session(world, queue, owner=Incarnation(f"w{number}", f"w{number:032x}"))
    worker = worker_of(queue)
    running = start(worker, with_monitor=False)
    await world.clock.sleep(3)
    assert worker._run is not None
    assert worker._run._candidates.workers == 6
    await worker.stop()
    await running


# --- what cannot be read -------------------------------------------------------------------


JUNK: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda _body: b"junk",
    "no UTF-8": lambda _body: b"\xff\xfe",
    "another object": lambda _body: b'{"v":1}',
    "a newer layout": lambda body: body.replace(b'"v":1', b'"v":2'),
    "no such state": lambda body: body.replace(b'"live"', b'"odd"'),
    "a lease without an end": lambda body: body.replace(b"2027-", b"20x7-"),
    "a task that is none": lambda body: body.replace(b'"task_id":"', b'"task_id":"x'),
    "no lifetime": lambda body: body.replace(b'"lifetime_s":30.0', b'"lifetime_s":0'),
}


@pytest.mark.parametrize("junk", JUNK)
@virtual
async def test_a_session_that_cannot_be_read_stops_nothing(world: World, junk: str) -> None:
    """It is left alone, is nobody's turn, and costs a read only once."""
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=3600)
    held = await claim(queue, task.id)
    drop_marker(world, queue, held)
    body = world.bucket.get(leave_session(world, queue, held))
    assert body is not None
    odd = JUNK[junk](body.body)
    assert odd != body.body
    world.bucket.put("workers/m.0.0.json", odd, Always())
    world.bucket.put("workers/odd key", b"", Always())
    watch = watch_of(queue)
    for _ in range(4):
        await watch.check("m1")
        await world.clock.sleep(12)
    assert record_of(world, queue, task.id).status == "pending"
    assert world.keys("workers/") == ["workers/m.0.0.json", "workers/odd key"]
    requests(queue).requests = asked = []
    for _ in range(4):
        await watch.check("m1")
        assert watch.next_check_s(15) == 15
        await world.clock.sleep(15)
    assert [asking for asking in asked if "workers/" in asking[1]] == [("list", "workers/")] * 4


@virtual
async def test_a_poison_ledger_counts_as_settled(world: World) -> None:
    queue = world.queue()
    ids = [(await queue.submit("do", None, timeout_seconds=3600)).id for _ in range(3)]
    held = [await claim(queue, task_id) for task_id in ids]
    leave_session(world, queue, *held)
    for one in held:
        drop_marker(world, queue, one)
    world.bucket.put(queue.keys.ledger(ids[0]), b"junk", Always())
    watch = watch_of(queue)
    for _ in range(3):
        await watch.check("m0")
        await world.clock.sleep(21)
    assert [record_of(world, queue, task_id).status for task_id in ids[1:]] == ["pending"] * 2
    assert world.keys("workers/") == []
    assert world.keys("poison/") == [queue.keys.poison(ids[0])]
    reason = world.bucket.get(queue.keys.poison(ids[0]))
    assert reason is not None
    assert ids[0] in reason.body.decode()


@virtual
async def test_a_newer_ledger_keeps_its_tombstone_and_holds_nothing_up(world: World) -> None:
    queue = world.queue()
    ids = [(await queue.submit("do", None, timeout_seconds=3600)).id for _ in range(3)]
    held = [await claim(queue, task_id) for task_id in ids]
    leave_session(world, queue, *held)
    newer = world.bucket.get(queue.keys.ledger(ids[0]))
    assert newer is not None
    body = newer.body.replace(b'"v":1', b'"v":2')
    world.bucket.put(queue.keys.ledger(ids[0]), body, Always())
    watch = watch_of(queue)
    for _ in range(8):
        await watch.check("m0")
        await world.clock.sleep(21)
    assert [record_of(world, queue, task_id).status for task_id in ids[1:]] == ["pending"] * 2
    assert state(world) == TOMBSTONE
    assert world.bucket.get(queue.keys.ledger(ids[0])).body == body  # type: ignore[union-attr]
    assert world.keys("poison/") == []


# --- old markers ---------------------------------------------------------------------------


@virtual
async def test_a_sweep_deletes_what_is_garbage_and_takes_back_what_is_void(world: World) -> None:
    queue = world.queue()
    ids = [(await queue.submit("do", number)).id for number in range(4)]
    worker = worker_of(queue)
    left = [queue.keys.marker_key(queue.keys.first_marker(task_id)) for task_id in ids[:2]]
    bodies = [world.bucket.get(key) for key in left]
    orphan = await claim(queue, ids[3])  # its session never stood; its marker does
    running = start(worker, with_monitor=False)
    await until(world, lambda: len(world.keys("ready/")) == 1, within_s=10)
    await worker.stop()
    await running
    for key, body in zip(left, bodies, strict=True):
        assert body is not None
        world.bucket.put(key, body.body, Always())  # deletions that never arrived
    world.bucket.put(f"{left[0][:-4]}0001", b"", Always())
    watch = watch_of(queue)
    await watch.check("m0")
    assert len(world.keys("ready/")) == 4  # younger than 60 s
    await world.clock.sleep(62)
    await watch.check("m0")
    ready = world.keys("ready/")
    assert record_of(world, queue, orphan.record.id).status == "pending"
    assert all(orphan.record.id in key for key in ready)
    assert len(ready) == 2  # the valid one, and the old one, which the next sweep deletes
    await world.clock.sleep(62)
    await watch.check("m0")
    assert len(world.keys("ready/")) == 1


@virtual
async def test_an_honest_backlog_costs_fifty_reads_a_check(world: World) -> None:
    queue = world.queue()
    for number in range(320):
        await queue.submit("nobody's", number)
    later = world.clock.monotonic()
    for number in range(40):
        await queue.submit("nobody's", number, schedule_at=None, priority=0)
    await world.clock.sleep(61 - later)
    watch = watch_of(queue)
    await watch.check("m0")
    requests(queue).requests = asked = []
    for _ in range(8):
        asked.clear()
        await watch.check("m0")
        reads = [key for kind, key in asked if kind == "get"]
        assert len(reads) == len(set(reads)) <= 50
        assert [key for kind, key in asked if kind == "list"] == ["workers/", "ready/"]
    assert len(world.keys("ready/")) == 360


@virtual
async def test_the_sweep_gets_round(world: World) -> None:
    """Garbage at the far end of a backlog is found, and the cursor begins anew."""
    queue = world.queue()
    for number in range(300):
        await queue.submit("nobody's", number, priority=number % 10)
    await world.clock.sleep(61)
    ready = world.keys("ready/")
    garbage = [f"{ready[0][:-4]}0001", f"{ready[-1][:-4]}0001"]
    watch = watch_of(queue)
    for turn in range(2):
        for key in garbage:
            world.bucket.put(key, b"", Always())
        for _ in range(8):
            await watch.check("m0")
        assert world.keys("ready/") == ready, turn


@virtual
async def test_a_poison_marker_is_noted_once_and_passed_over(world: World) -> None:
    queue = world.queue()
    ids = [(await queue.submit("do", number)).id for number in range(3)]
    await claim(queue, ids[0])
    world.bucket.put(queue.keys.ledger(ids[0]), b"junk", Always())
    world.bucket.put("ready/junk", b"", Always())
    orphan = await claim(queue, ids[2])
    await world.clock.sleep(61)
    watch = watch_of(queue)
    await watch.check("m0")
    assert record_of(world, queue, orphan.record.id).status == "pending"
    assert world.keys("poison/") == [queue.keys.poison(ids[0])]
    requests(queue).counts.clear()
    for _ in range(5):
        await watch.check("m0")
    assert requests(queue).counts["put"] == 0
