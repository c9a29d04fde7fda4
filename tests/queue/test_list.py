"""list(): every task of a shard once, in order, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pytest
from virtual import World, requests, virtual

from buquet import RetryPolicy, TaskStatus, Worker, WorkerRunOptions
from buquet._core import ident
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.interface import Always, Capabilities
from buquet.store.memory import MemoryStore
from buquet.testing.clock import START

NOW = datetime.fromtimestamp(START, UTC)
BURST = WorkerRunOptions(burst=True, with_monitor=False)
SHARD = "3"


@pytest.fixture(params=[1000, 7, 2])
def page_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Also with tiny pages, so that every page boundary is met."""
    monkeypatch.setattr(MemoryStore, "capabilities", Capabilities(name="memory", max_keys=request.param))
    return request.param


def ids_in(
    shard: str, count: int, *, due_ms: Callable[[int], int], priority: Callable[[int], int]
) -> list[str]:
    """Make ids that all fall into one shard."""
    keys, found, number = Keys(), [], 0
    while len(found) < count:
        task_id = ident.mint(due_ms(len(found)), priority(len(found)), number)
        if keys.shard(task_id) == shard:
            found.append(task_id)
        number += 1
    return found


async def fill(queue: Queue, monkeypatch: pytest.MonkeyPatch, ids: list[str], **arguments: Any) -> None:
    """Submit tasks of exactly these ids."""
    for task_id in ids:
        with monkeypatch.context() as patch:
            patch.setattr(ident, "mint", lambda *_, task_id=task_id: task_id)
            await queue.submit(
                "mail",
                {},
                priority=ident.priority(task_id),
                schedule_at=datetime.fromtimestamp(ident.due_ms(task_id) / 1000, UTC),
                **arguments,
            )


async def all_of(queue: Queue, limit: int, **arguments: Any) -> list[str]:
    """Page through a shard."""
    found: list[str] = []
    while True:
        page = await queue.list(SHARD, limit=limit, after=found[-1] if found else None, **arguments)
        found += [task.id for task in page]
        if len(page) < limit:
            return found


def spread(number: int) -> int:
    """Due times with many ties, most in the past and some in the future."""
    return int(START * 1000) + (number * 7919 % 60 - 40) // 4 * 1000


@pytest.mark.parametrize("limit", [1, 3, 1000])
@virtual
async def test_every_task_once_and_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch, page_size: int, limit: int
) -> None:
    await world.clock.sleep(60)
    queue = world.queue()
    ids = ids_in(SHARD, 45, due_ms=lambda n: spread(n) + 60_000_000, priority=lambda n: n * 3 % 10)
    await fill(queue, monkeypatch, ids)
    await queue.submit("mail", {})
    assert await all_of(queue, limit) == sorted(ids)
    assert await all_of(queue, limit, status="completed") == []


@virtual
async def test_claimed_and_unclaimed_are_mixed(
    world: World, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    queue = world.queue()
    ids = ids_in(SHARD, 30, due_ms=lambda n: int(START * 1000) + 60_000 * n, priority=lambda n: n % 3)
    policy = RetryPolicy(initial_interval_ms=3_600_000, max_interval_ms=3_600_000)
    await fill(queue, monkeypatch, ids, retry_policy=policy)
    worker, runs = Worker(queue, "w"), 0

    @worker.task("mail")
    async def handle(_input: object) -> None:
        nonlocal runs
        runs += 1
        if runs % 3 == 0:
            raise ValueError

    await world.clock.sleep(15 * 60)
    await worker.run(BURST)
    assert await all_of(queue, 4) == sorted(ids)
    by_status = {status: await all_of(queue, 2, status=status) for status in TaskStatus}
    assert {status: len(found) for status, found in by_status.items()} == {
        "pending": 19,
        "running": 0,
        "completed": 11,
        "failed": 0,
        "archived": 0,
    }
    assert sorted(chain.from_iterable(by_status.values())) == sorted(ids)


@virtual
async def test_a_claimed_task_whose_marker_is_still_there_is_listed_once(world: World) -> None:
    queue = world.queue()
    task = await queue.submit("mail", {})
    marker_key = world.keys()[0]
    body = world.bucket.get(marker_key).body  # type: ignore[union-attr]
    worker = Worker(queue, "w")
    worker.task("mail")(_nothing)
    await worker.run(BURST)
    world.bucket.put(marker_key, body, Always())
    found = await queue.list(queue.keys.shard(task.id))
    assert [(seen.id, seen.status.value) for seen in found] == [(task.id, "completed")]


@virtual
async def test_a_status_filters_before_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = world.queue()
    ids = ids_in(SHARD, 100, due_ms=lambda n: int(START * 1000) + n * 1000, priority=lambda _: 5)
    await fill(queue, monkeypatch, ids)
    worker = Worker(queue, "w")
    worker.task("mail")(_nothing)
    await world.clock.sleep(89.5)
    await worker.run(BURST)
    assert [task.id for task in await queue.list(SHARD, "pending", limit=3)] == ids[90:93]
    assert [task.id for task in await queue.list(SHARD, TaskStatus.Pending, limit=50)] == ids[90:]
    assert [task.id for task in await queue.list(SHARD, limit=3)] == ids[:3]
    assert [task.id for task in await queue.list(SHARD, "completed", limit=2, after=ids[50])] == ids[51:53]
    assert await queue.list(SHARD, after=ids[-1]) == []
    assert await queue.list(SHARD, limit=0) == []
    assert len(await queue.list(SHARD)) == 100


@virtual
async def test_more_than_a_page_of_tasks(world: World) -> None:
    queue = world.queue()
    for _ in range(1100 * 16):
        await queue.submit("mail", {})
    shards = queue.keys.shards()
    sizes = [len(await queue.list(shard, limit=100_000)) for shard in shards]
    assert sum(sizes) == 1100 * 16
    assert max(sizes) > 1000
    assert [len(await queue.list(shard)) for shard in shards] == [100] * 16


@virtual
async def test_tasks_claimed_while_they_are_listed_are_not_missed(
    world: World, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    setup = world.queue()
    ids = ids_in(SHARD, 40, due_ms=lambda n: int(START * 1000) + n, priority=lambda n: n % 2)
    await fill(setup, monkeypatch, ids)
    await world.clock.sleep(1)
    left = list(ids)

    def claim_one(kind: str, _key: str) -> None:
        """At every request some task moves from its marker to its ledger."""
        if left:
            task_id = left.pop(len(left) * 7 // 11)
            key = setup.keys.marker_key(setup.keys.first_marker(task_id))
            body = world.bucket.get(key).body  # type: ignore[union-attr]
            world.bucket.put(setup.keys.ledger(task_id), body, Always())
            world.bucket.delete(key)

    found = await world.queue(plan=claim_one).list(SHARD)
    assert [task.id for task in found] == ids


@virtual
async def test_what_nobody_can_read_does_not_stop_a_listing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue()
    ids = ids_in(SHARD, 5, due_ms=lambda n: int(START * 1000) + n, priority=lambda _: 5)
    await fill(queue, monkeypatch, ids)
    foreign = ids_in(SHARD, 40, due_ms=lambda n: n, priority=lambda _: 9)
    junk = {
        f"tasks/{SHARD}/notes.txt": b"",
        f"tasks/{SHARD}/{foreign[0]}.json": b"not JSON",
        f"tasks/{SHARD}/{foreign[1]}.json": b'{"v": 2}',
        f"ready/{SHARD}/5/junk": b"",
        f"ready/{SHARD}/5/000000000000-018bcfe5-6800-7000-bfff-0000000000ab-0000": b"",
        f"ready/{SHARD}/5/000000000000-018bcfe5-6800-8000-9400-0000000000ab-0000": b"",
    }
    for key, body in junk.items():
        world.bucket.put(key, body, Always())
    assert [task.id for task in await queue.list(SHARD)] == ids


@virtual
async def test_pages_of_foreign_keys_of_one_time_hide_no_task(
    world: World, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    queue = world.queue()
    now_ms = int(START * 1000)
    ids = ids_in(SHARD, 5, due_ms=lambda n: now_ms + n, priority=lambda _: 5)
    await fill(queue, monkeypatch, ids)
    for number in range(1001):
        world.bucket.put(f"ready/{SHARD}/5/{now_ms + 2:012x}-zzz{number:04}", b"", Always())
        world.bucket.put(f"tasks/{SHARD}/{'z' * (number + 1)}.json", b"", Always())
    assert [task.id for task in await queue.list(SHARD)] == ids


@pytest.mark.parametrize(
    "arguments", [{"status": "done"}, {"status": ""}, {"after": "x"}, {"limit": 1.5}, {"limit": True}]
)
@virtual
async def test_bad_arguments_cost_no_request(world: World, arguments: dict[str, Any]) -> None:
    queue = world.queue()
    with pytest.raises((ValueError, TypeError)):
        await queue.list("0", **arguments)
    assert requests(queue).total == 0


async def _nothing(_input: object) -> None:
    pass
