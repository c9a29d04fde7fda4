"""The audit: it finds every fault and mends what can be mended, and sees none where there is none."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from fleet import OWNER, Line, claim, drop_marker, leave_session, record_of, start, until, worker_of
from virtual import World, virtual

from buquet import PermanentError, RetryableError, RetryPolicy
from buquet._core.record import encode, to_terminal
from buquet.audit import Fault, Report
from buquet.monitor import Monitor
from buquet.queue import Queue
from buquet.store.interface import Always
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.faulty import Slow

NEWER = b'{"v": 2}'


def faults(report: Report) -> list[tuple[Fault, str]]:
    return [(finding.fault, finding.key) for finding in report.findings]


async def finds(world: World, queue: Queue, fault: Fault, key: str) -> None:
    """The audit finds this and nothing else, and touches nothing unless it is asked to mend."""
    before = {key: world.bucket.get(key) for key in world.keys("")}
    report = await queue.verify()
    assert faults(report) == [(fault, key)]
    assert not report.findings[0].repaired
    assert {key: world.bucket.get(key) for key in world.keys("")} == before


async def mends(world: World, queue: Queue, fault: Fault, key: str) -> None:
    await finds(world, queue, fault, key)
    report = await queue.verify(repair=True)
    assert (faults(report), report.findings[0].repaired, report.is_sound) == ([(fault, key)], True, True)
    assert (await queue.verify()).findings == []


async def ends(world: World, queue: Queue, task_id: str) -> None:
    """A worker finds the task and runs it, and nothing is left."""
    worker = worker_of(world.queue())
    running = start(worker)
    assert (await queue.wait(task_id, timeout_s=600)).status == "completed"
    await until(world, lambda: not world.keys("ready/"), within_s=30)
    await worker.stop()
    await running
    assert (await queue.verify()).findings == []


# --- every fault ---------------------------------------------------------------------------


@virtual
async def test_a_pending_task_without_a_marker(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    await claim(queue, task.id)
    loaded = await queue.ledger.load(task.id)
    assert loaded is not None
    await queue.ledger.take_back(loaded)
    for key in world.keys("ready/"):
        world.bucket.delete(key)
    marker = queue.keys.marker_key(queue.keys.marker_of(record_of(world, queue, task.id)))
    assert not (await queue.verify()).is_sound
    await mends(world, queue, Fault.LOST_MARKER, marker)
    await ends(world, queue, task.id)


@virtual
async def test_a_running_task_that_nothing_leads_to(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None, timeout_seconds=60)
    held = await claim(queue, task.id)
    leave_session(world, queue)  # which does not list the lease
    drop_marker(world, queue, held)
    assert not (await queue.verify()).is_sound
    await mends(world, queue, Fault.ORPHAN, queue.keys.marker_key(held.marker))
    await ends(world, queue, task.id)


@pytest.mark.parametrize("state", ["live", "tombstone"])
@virtual
async def test_a_running_task_in_a_journal_is_no_fault(world: World, state: str) -> None:
    queue = world.queue()
    held = await claim(queue, (await queue.submit("do", None)).id)
    leave_session(world, queue, held, state=state)
    drop_marker(world, queue, held)
    report = await queue.verify()
    assert report.findings == []
    assert (report.live_sessions, report.tombstones) == ((1, 0) if state == "live" else (0, 1))


@virtual
async def test_a_marker_that_has_served(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    await ends(world, queue, task.id)
    key = queue.keys.marker_key(queue.keys.first_marker(task.id))
    world.bucket.put(key, b"", Always())
    assert (await queue.verify()).findings == [], "its worker may be about to delete it"
    await world.clock.sleep(120)
    assert (await queue.verify()).is_sound
    await mends(world, queue, Fault.GARBAGE, key)
    assert world.keys("ready/") == []


@virtual
async def test_an_empty_marker_without_a_ledger(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    key = queue.keys.marker_key(queue.keys.first_marker(task.id))
    world.bucket.put(key, b"", Always())
    await world.clock.sleep(120)
    await mends(world, queue, Fault.GARBAGE, key)


@virtual
async def test_a_failed_task_that_is_not_listed(world: World) -> None:
    queue = world.queue()
    task = await _failed(world, queue)
    world.bucket.delete(queue.keys.failed(task))
    assert not (await queue.verify()).is_sound
    await mends(world, queue, Fault.UNLISTED, queue.keys.failed(task))
    assert [one.id for one in await queue.list_failed()] == [task]


@virtual
async def test_a_dead_letter_whose_task_has_not_failed(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    await ends(world, queue, task.id)
    world.bucket.put(queue.keys.failed(task.id), b"", Always())
    assert (await queue.verify()).is_sound
    await mends(world, queue, Fault.OUTLIVED, queue.keys.failed(task.id))


@virtual
async def test_a_dead_letter_without_a_ledger_is_outlived_after_20_minutes(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    world.bucket.put(queue.keys.failed(task.id), b"", Always())
    await world.clock.sleep(1190)
    assert (await queue.verify()).findings == []
    await world.clock.sleep(20)
    await mends(world, queue, Fault.OUTLIVED, queue.keys.failed(task.id))


@pytest.mark.parametrize("body", [b"not JSON", b"{}", b"\xff", NEWER])
@virtual
async def test_a_ledger_that_cannot_be_read(world: World, body: bytes) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    await ends(world, queue, task.id)
    world.bucket.put(queue.keys.ledger(task.id), body, Always())
    await finds(world, queue, Fault.UNREADABLE, queue.keys.ledger(task.id))
    report = await queue.verify(repair=True)
    assert not report.is_sound
    assert world.bucket.get(queue.keys.ledger(task.id)).body == body  # type: ignore[union-attr]


@virtual
async def test_a_ledger_that_is_about_another_task(world: World) -> None:
    queue = world.queue()
    task, other = await queue.submit("do", None), await queue.submit("do", None)
    await ends(world, queue, task.id)
    await ends(world, queue, other.id)
    world.bucket.put(
        queue.keys.ledger(task.id),
        world.bucket.get(queue.keys.ledger(other.id)).body,  # type: ignore[union-attr]
        Always(),
    )
    await finds(world, queue, Fault.UNREADABLE, queue.keys.ledger(task.id))


@pytest.mark.parametrize("body", [b"not JSON", NEWER])
@virtual
async def test_a_first_marker_that_cannot_be_read(world: World, body: bytes) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    key = queue.keys.marker_key(queue.keys.first_marker(task.id))
    world.bucket.put(key, body, Always())
    await finds(world, queue, Fault.UNREADABLE, key)


@virtual
async def test_a_first_marker_at_another_due(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    key = queue.keys.marker_key(queue.keys.first_marker(task.id))
    body = world.bucket.get(key).body  # type: ignore[union-attr]
    world.bucket.delete(key)
    moved = key.replace("/5/", "/6/")
    world.bucket.put(moved, body, Always())
    await finds(world, queue, Fault.UNREADABLE, moved)


@pytest.mark.parametrize("body", [b"not JSON", b"{}", NEWER])
@virtual
async def test_a_session_that_cannot_be_read(world: World, body: bytes) -> None:
    queue = world.queue()
    held = await claim(queue, (await queue.submit("do", None)).id)
    leave_session(world, queue, held)
    drop_marker(world, queue, held)
    world.bucket.put("workers/w.other.0.json", body, Always())
    await finds(world, queue, Fault.UNREADABLE, "workers/w.other.0.json")


@pytest.mark.parametrize(
    "key",
    [
        "ready/0/readme.txt",
        "ready/readme.txt",
        "ready/00/5/01a3185c5000-01a3185c-5000-7000-958a-7dbed82c07cd-0000",
        "tasks/0/readme.txt",
        "tasks/00/01a3185c-5000-7000-958a-7dbed82c07cd.json",
        "tasks/zz",
        "failed/0/readme.txt",
        "failed/000/01a3185c-5000-7000-958a-7dbed82c07cd",
    ],
)
@virtual
async def test_a_key_of_somebody_else(world: World, key: str) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    world.bucket.put(key, b"hello", Always())
    await finds(world, queue, Fault.STRAY, key)
    report = await queue.verify(repair=True)
    assert (report.is_sound, report.findings[0].repaired, report.by_status) == (True, False, {"pending": 1})
    assert await queue.get(task.id) is not None


@virtual
async def test_a_ledger_in_the_wrong_shard(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("do", None)
    await ends(world, queue, task.id)
    shard = queue.keys.shard(task.id)
    key = queue.keys.ledger(task.id).replace(f"/{shard}/", "/0/" if shard != "0" else "/1/")
    world.bucket.put(key, world.bucket.get(queue.keys.ledger(task.id)).body, Always())  # type: ignore[union-attr]
    report = await queue.verify()
    assert faults(report) == [(Fault.STRAY, key)]


@virtual
async def test_it_counts(world: World) -> None:
    queue = world.queue()
    failed = await _failed(world, queue)
    ids = [(await queue.submit("do", None, timeout_seconds=3600)).id for _ in range(6)]
    await queue.archive(failed)
    await queue.list_failed()
    held = [await claim(queue, task_id) for task_id in ids[:2]]
    leave_session(world, queue, *held)
    report = await queue.verify()
    assert (report.by_status, report.markers, report.live_sessions, report.tombstones) == (
        {"pending": 4, "running": 2, "archived": 1},
        6,
        1,
        0,
    )
    assert report.findings == []
    assert report.is_sound


async def _failed(world: World, queue: Queue) -> str:
    task = await queue.submit("do", None, max_retries=0)
    worker = worker_of(queue, _refuse)
    running = start(worker)
    assert (await queue.wait(task.id, timeout_s=60)).status == "failed"
    await until(world, lambda: not world.keys("ready/"), within_s=30)
    await worker.stop()
    await running
    return task.id


async def _refuse(_input: object) -> None:
    raise PermanentError("never")


@virtual
async def test_a_task_that_goes_on_meanwhile_is_no_fault(world: World) -> None:
    """Its owner settles it, and drops it from its journal, just before the audit asks for the sessions."""
    queue = world.queue()
    held = await claim(queue, (await queue.submit("do", None)).id)
    session = leave_session(world, queue, held)
    drop_marker(world, queue, held)
    lists = 0

    def settle(kind: str, key: str) -> None:
        nonlocal lists
        lists += (kind, key) == ("list", "workers/")
        if lists == 2:
            world.bucket.delete(session)
            done = to_terminal(held.record, at_ms=queue.store.time.now_ms(), status="completed", nonce="n")
            world.bucket.put(queue.keys.ledger(held.record.id), encode(done), Always())

    assert (await world.queue(plan=settle).verify()).findings == []
    assert lists == 2


# --- beside live workers -------------------------------------------------------------------


async def audits_beside_workers(clock: VirtualClock, seed: int) -> None:
    """Workers come to every kind of end, one crashes, and every audit in between sees nothing wrong."""
    world, chance = World(clock), random.Random(seed)

    slowest_s = chance.choice([0.05, 0.5])

    def slow(_kind: str, _key: str) -> Slow:
        return Slow(chance.uniform(0, slowest_s))

    async def handle(number: object) -> None:
        await clock.sleep(chance.expovariate(1 / 4))
        match chance.randrange(8):
            case 0:
                raise RetryableError("again")
            case 1:
                raise PermanentError("never")

    lines = [_Slow(chance) for _ in range(3)]
    workers = [worker_of(world.queue(plan=line), handle, concurrency=4) for line in lines]
    running = [start(worker) for worker in workers]
    auditor, reader = world.queue(plan=slow), world.queue()
    policy = RetryPolicy(initial_interval_ms=300)
    ids = [(await reader.submit("do", None, 30, 9, policy)).id for _ in range(60)]
    for number in range(25):
        report = await auditor.verify(repair=number % 2 == 1)
        assert report.findings == []
        if number == 4:
            lines[0].is_cut = True
        await clock.sleep(chance.uniform(0, 4))
    for task_id in ids:
        await reader.wait(task_id, timeout_s=600)
    assert sum((await auditor.verify()).by_status.values()) == len(ids)
    lines[0].is_cut = False
    await asyncio.gather(*(worker.stop() for worker in workers))
    await asyncio.gather(*running)


class _Slow(Line):
    """A line whose requests take a moment, until it is cut."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def __call__(self, kind: str, key: str) -> Slow:  # type: ignore[override]
        fault = super().__call__(kind, key)
        return fault if isinstance(fault, Slow) else Slow(self._chance.uniform(0, 0.05))


@pytest.mark.parametrize("seed", range(25))
def test_no_false_alarm(seed: int) -> None:
    run_virtual(lambda clock: audits_beside_workers(clock, seed), seed)


# --- poison --------------------------------------------------------------------------------


@virtual
async def test_what_cannot_be_read_stops_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A worker, a monitor and all listings go on; why it cannot be read is written down (rule 20)."""
    caplog.set_level(logging.ERROR)
    queue = world.queue()
    journaled, swept, unclaimed = [await queue.submit("do", n, timeout_seconds=60) for n in range(3)]
    held = await claim(queue, journaled.id)
    leave_session(world, queue, held)
    drop_marker(world, queue, held)
    await claim(queue, swept.id)
    for task in (journaled, swept):
        world.bucket.put(queue.keys.ledger(task.id), b"not JSON", Always())
    first = queue.keys.marker_key(queue.keys.first_marker(unclaimed.id))
    world.bucket.put(first, b"not JSON", Always())
    for key in ("ready/0/x", "tasks/0/x", "failed/0/x", "workers/x", f"workers/w.x.{OWNER.id}.json"):
        world.bucket.put(key, b"not JSON", Always())
    worker, monitor = worker_of(queue), Monitor(world.queue(), "watcher")
    running = [start(worker, with_monitor=False), asyncio.create_task(monitor.run())]
    sound = [(await queue.submit("do", None)).id for _ in range(20)]
    for task_id in sound:
        assert (await queue.wait(task_id, timeout_s=60)).status == "completed"
    await world.clock.sleep(180)
    poison = {key: world.bucket.get(key).body for key in world.keys("poison/")}  # type: ignore[union-attr]
    assert sorted(poison) == sorted(queue.keys.poison(task.id) for task in (journaled, swept, unclaimed))
    assert all(b"JSON" in reason for reason in poison.values()), poison
    listed = [task.id for shard in queue.keys.shards() for task in await queue.list(shard)]
    assert sorted(listed) == sorted(sound)
    assert await queue.list_failed() == []
    for shard in queue.keys.shards():
        await queue.list_ready(shard)
    assert not (await queue.verify()).is_sound
    await worker.stop()
    monitor.stop()
    await asyncio.gather(*running)
    assert caplog.messages == []
