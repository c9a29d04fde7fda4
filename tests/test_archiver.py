"""The archiver: removing a record is slow on purpose, so that nothing that is gone comes back (rule 19)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from fleet import OWNER, Line, end, record_of, worker_of
from virtual import World, requests, virtual

from buquet import PermanentError, WorkerRunOptions
from buquet._core.record import decode, encode
from buquet._core.rfc3339 import format_ms
from buquet.archiver import (
    AFTER_ARCHIVING_S,
    LEAST_RETENTION_S,
    MARK_LIVES_S,
    MARKER_BODY_LIVES_S,
    Archiver,
)
from buquet.errors import AccessDenied, Unavailable
from buquet.ledger import Look
from buquet.queue import Queue
from buquet.store.interface import Always, FenceExpired
from buquet.testing.faulty import Fault, Lost, LostReply, Refused

BURST = WorkerRunOptions(burst=True, with_monitor=False)
DAY_S = 24 * 3600
RETENTION_S = 7 * DAY_S


def archiver_of(queue: Queue, retention_s: float = RETENTION_S) -> Archiver:
    return Archiver(queue.ledger, queue.store, retention_s=retention_s)


async def completed(queue: Queue, count: int = 1) -> list[str]:
    ids = [(await queue.submit("do", number)).id for number in range(count)]
    await worker_of(queue).run(BURST)
    return ids


def age(world: World, queue: Queue, task_id: str, by_s: float, *fields: str) -> None:
    """Let a record have been there for longer: virtual weeks would take a real while."""
    key = queue.keys.ledger(task_id)
    record = decode(world.bucket.get(key).body)  # type: ignore[union-attr]
    then = format_ms(int((world.clock.unix() - by_s) * 1000))
    changed = msgspec.structs.replace(record, **dict.fromkeys(fields, then))
    world.bucket.put(key, encode(changed), Always())


async def archived(world: World, queue: Queue, ago_s: float = AFTER_ARCHIVING_S + 1) -> str:
    """A task that ended long ago and was archived some time ago."""
    (task_id,) = await completed(queue)
    await queue.archive(task_id)
    age(world, queue, task_id, 2 * RETENTION_S, "first_due", "completed_at")
    age(world, queue, task_id, ago_s, "updated_at")
    return task_id


def is_there(world: World, queue: Queue, task_id: str) -> bool:
    return world.bucket.get(queue.keys.ledger(task_id)) is not None


async def sweeps(world: World, archiver: Archiver, *, every_s: float, times: int) -> None:
    for _ in range(times):
        await archiver.sweep()
        await world.clock.sleep(every_s)


@pytest.mark.parametrize("retention_s", [0, 3600, LEAST_RETENTION_S - 1])
@virtual
async def test_a_week_is_the_least(world: World, retention_s: float) -> None:
    with pytest.raises(ValueError, match="7 days"):
        archiver_of(world.queue(), retention_s)


@virtual
async def test_only_what_ended_long_ago_is_archived(world: World) -> None:
    queue = world.queue()
    old, young, late = await completed(queue, 3)
    waiting = await queue.submit("other", None)
    age(world, queue, old, RETENTION_S + 1, "first_due", "completed_at")
    age(world, queue, young, RETENTION_S - 60, "first_due", "completed_at")
    age(world, queue, late, RETENTION_S + 1, "first_due")  # due long ago, ended just now
    assert await archiver_of(queue).sweep() == 1
    states = [record_of(world, queue, task_id).status for task_id in (old, young, late)]
    assert states == ["archived", "completed", "completed"]
    assert (await queue.get(waiting.id)).status == "pending"  # type: ignore[union-attr]
    assert await archiver_of(queue, 365 * DAY_S).sweep() == 0


@virtual
async def test_a_record_is_removed_an_hour_and_25_minutes_after_it_was_archived(world: World) -> None:
    queue = world.queue()
    task_id = await archived(world, queue, ago_s=0)
    archiver = archiver_of(queue)
    began = world.clock.monotonic()
    while is_there(world, queue, task_id):
        await archiver.sweep()
        await world.clock.sleep(60)
    took_s = world.clock.monotonic() - began
    least = AFTER_ARCHIVING_S + MARKER_BODY_LIVES_S
    assert least == 3600 + 25 * 60
    assert least <= took_s <= least + 300
    assert (world.keys("tasks/"), world.keys("ready/"), world.keys("failed/")) == ([], [], [])
    assert await queue.get(task_id) is None
    assert await archiver.sweep() == 0


@virtual
async def test_a_marker_that_comes_back_is_deleted_and_waited_for(world: World) -> None:
    """The order: the first marker goes, is seen to be gone, and 25 minutes later the record goes."""
    queue = world.queue()
    task_id = await archived(world, queue)
    marker = queue.keys.marker_key(queue.keys.first_marker(task_id))
    world.bucket.put(marker, b"a deletion that never arrived", Always())
    requests(queue).requests = asked = []
    archiver = archiver_of(queue)
    await archiver.sweep()
    ours = [(kind, key) for kind, key in asked if kind != "list"]
    ledger, entry = queue.keys.ledger(task_id), queue.keys.failed(task_id)
    assert ours == [("get", ledger), ("delete", marker), ("delete", entry), ("get", marker)]
    await world.clock.sleep(MARKER_BODY_LIVES_S - 1)
    await archiver.sweep()
    assert is_there(world, queue, task_id)
    asked.clear()
    await world.clock.sleep(2)
    assert await archiver.sweep() == 1
    ours = [(kind, key) for kind, key in asked if kind != "list"]
    assert ours == [("get", ledger), ("put", ledger), ("delete", ledger)]


@virtual
async def test_a_worker_that_holds_the_marker_s_body_cannot_bring_the_task_back(world: World) -> None:
    """It read the body, stood still until the record was gone, and then sends its claim."""
    queue = world.queue()
    task = await queue.submit("do", None)
    slow, paused = world.queue(), asyncio.Event()
    key = queue.keys.marker_key(queue.keys.first_marker(task.id))
    read = slow.store.get

    async def get_and_pause(asked: str) -> Any:
        blob = await read(asked)
        if asked == key:
            await paused.wait()
        return blob

    slow.store.get = get_and_pause  # type: ignore[method-assign]
    marker = queue.keys.first_marker(task.id)
    claiming = asyncio.create_task(
        slow.ledger.claim(marker, has_body=True, look=Look.MARKER, owner=OWNER, handles={"do"})
    )
    await world.clock.sleep(1)
    await worker_of(queue).run(BURST)
    await queue.archive(task.id)
    age(world, queue, task.id, 2 * RETENTION_S, "first_due", "completed_at")
    archiver = archiver_of(queue)
    while is_there(world, queue, task.id):
        await archiver.sweep()
        await world.clock.sleep(600)
    paused.set()
    with pytest.raises(FenceExpired):
        await claiming
    assert world.keys("tasks/") == []


@pytest.mark.parametrize("last", [None, LostReply()], ids=str)
@virtual
async def test_the_deletion_is_sent_once(world: World, last: Fault | None) -> None:
    """Killed right before it or without a reply: nobody else sends it while the mark is young."""
    queue = world.queue()
    task_id = await archived(world, queue)
    deletions = 0

    def plan(kind: str, key: str) -> Fault | None:
        nonlocal deletions
        if kind == "delete" and key.startswith("tasks/"):
            deletions += 1
            return last
        return None

    clients = [archiver_of(world.queue(plan=plan)) for _ in range(3)]
    for _ in range(8):
        await asyncio.gather(*(client.sweep() for client in clients))
        await world.clock.sleep(300)
    assert deletions == 1
    assert not is_there(world, queue, task_id)


@virtual
async def test_a_mark_whose_writer_is_gone_is_replaced_after_an_hour(world: World) -> None:
    queue = world.queue()
    task_id = await archived(world, queue)
    line = Line()
    doomed = archiver_of(world.queue(plan=lambda kind, key: _cut_at_delete(line, kind, key)))
    await doomed.sweep()
    await world.clock.sleep(MARKER_BODY_LIVES_S + 1)
    sweeping = asyncio.create_task(doomed.sweep())
    await world.clock.sleep(5)
    await end(sweeping)
    marked = record_of(world, queue, task_id)
    assert marked.deletion_marked_at is not None
    began, other = world.clock.monotonic(), archiver_of(queue)
    while is_there(world, queue, task_id):
        await other.sweep()
        await world.clock.sleep(60)
    assert MARK_LIVES_S <= world.clock.monotonic() - began <= MARK_LIVES_S + MARKER_BODY_LIVES_S + 300


def _cut_at_delete(line: Line, kind: str, key: str) -> Fault | None:
    if kind == "delete" and key.startswith("tasks/"):
        line.is_cut = True
    return line(kind, key)


@pytest.mark.parametrize("n", range(8))
@virtual
async def test_killed_at_any_request_the_next_one_finishes(world: World, n: int) -> None:
    """At its request n that is not a LIST."""
    queue, line = world.queue(), Line(cut_after=n)
    task_id = await archived(world, queue)
    doomed = archiver_of(world.queue(plan=lambda kind, key: None if kind == "list" else line(kind, key)))
    sweeping = asyncio.create_task(sweeps(world, doomed, every_s=MARKER_BODY_LIVES_S + 1, times=2))
    await world.clock.sleep(2 * MARKER_BODY_LIVES_S)
    await end(sweeping)
    assert line.is_cut == (n < 7)
    await sweeps(world, archiver_of(queue), every_s=MARKER_BODY_LIVES_S + 1, times=6)
    assert not is_there(world, queue, task_id)
    assert world.keys("ready/") == []


@virtual
async def test_a_requeued_task_s_origin_goes_first(world: World) -> None:
    """A crash left the old task failed although its work was submitted again; both are old now."""
    queue, line = world.queue(), Line(cut_after=2)
    old = await queue.submit("do", None)
    worker = worker_of(queue, _fail)
    await worker.run(BURST)
    calling = asyncio.create_task(world.queue(plan=line).requeue(old.id))
    await world.clock.sleep(3)
    await end(calling)
    await worker_of(queue).run(BURST)
    ids = [key.split("/")[2].removesuffix(".json") for key in world.keys("tasks/")]
    for task_id in ids:
        age(world, queue, task_id, 2 * RETENTION_S, "first_due", "completed_at")
    archiver = archiver_of(queue)
    await sweeps(world, archiver, every_s=1, times=3)
    (new_id,) = set(ids) - {old.id}
    assert record_of(world, queue, old.id).requeued_as == new_id
    assert {record_of(world, queue, task_id).status for task_id in ids} == {"archived"}


async def _fail(_input: object) -> None:
    raise PermanentError("no use")


@virtual
async def test_what_cannot_be_read_is_left_alone(world: World) -> None:
    queue = world.queue()
    ids = [await archived(world, queue) for _ in range(3)]
    junk = b"junk"
    newer = world.bucket.get(queue.keys.ledger(ids[1])).body.replace(b'"v":1', b'"v":2')  # type: ignore[union-attr]
    world.bucket.put(queue.keys.ledger(ids[0]), junk, Always())
    world.bucket.put(queue.keys.ledger(ids[1]), newer, Always())
    archiver = archiver_of(queue)
    await sweeps(world, archiver, every_s=MARKER_BODY_LIVES_S + 1, times=3)
    assert [is_there(world, queue, task_id) for task_id in ids] == [True, True, False]


@virtual
async def test_a_record_that_the_store_refuses_does_not_end_the_sweep(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    queue = world.queue()
    ids = await completed(queue, 20)
    for task_id in ids:
        age(world, queue, task_id, RETENTION_S + 1, "first_due", "completed_at")
    bad = queue.keys.ledger(ids[0])
    refusing = world.queue(
        plan=lambda _kind, key: Refused(AccessDenied("no", key=key)) if key == bad else None
    )
    assert await archiver_of(refusing).sweep() == 19
    assert [record.getMessage() for record in caplog.records] == [f"task {ids[0]} left alone: no"]


@virtual
async def test_a_store_that_is_away_ends_the_sweep(world: World) -> None:
    queue = world.queue()
    await completed(queue, 20)
    asked = set()

    def lose(kind: str, key: str) -> Fault | None:
        if kind == "list":
            return None
        asked.add(key)
        return Lost()

    with pytest.raises(Unavailable):
        await archiver_of(world.queue(plan=lose)).sweep()
    assert len(asked) == 1
