"""Deletions: batched, fenced, and not forgotten when the store does not take them."""

from __future__ import annotations

import asyncio

import pytest
from virtual import World, requests, virtual

from buquet.deletions import OLDEST_S, Deletions
from buquet.errors import AccessDenied
from buquet.store.interface import Always
from buquet.testing.faulty import Busy, Lost, Refused, Slow


def fill(world: World, count: int) -> list[str]:
    keys = [f"ready/{number:05d}" for number in range(count)]
    for key in keys:
        world.bucket.put(key, b"", Always())
    return keys


@virtual
async def test_a_thousand_a_request(world: World) -> None:
    queue = world.queue()
    deletions = Deletions(queue.store)
    for key in fill(world, 2500):
        deletions.add(key, read_at=world.clock.monotonic())
    await deletions.flush()
    assert (world.keys(), len(deletions)) == ([], 0)
    assert requests(queue).counts == {"delete_many": 3}
    await deletions.flush()
    assert requests(queue).counts == {"delete_many": 3}, "nothing to delete is no request"


@pytest.mark.parametrize("fault", [Lost(), Busy(), Refused(AccessDenied("no"))])
@virtual
async def test_what_the_store_does_not_take_waits(world: World, fault: object) -> None:
    away = True
    queue = world.queue(plan=lambda _kind, _key: fault if away else None)
    deletions = Deletions(queue.store)
    for key in fill(world, 3):
        deletions.add(key, read_at=world.clock.monotonic())
    await deletions.flush()
    assert len(deletions) == 3
    away = False
    await deletions.flush()
    assert world.keys() == []


@virtual
async def test_what_waited_too_long_is_dropped(world: World) -> None:
    deletions = Deletions(world.queue().store)
    old, young = fill(world, 2)
    deletions.add(old, read_at=world.clock.monotonic())
    await world.clock.sleep(OLDEST_S - 1)
    deletions.add(young, read_at=world.clock.monotonic())
    await world.clock.sleep(2)
    await deletions.flush()
    assert world.keys() == [old]
    assert len(deletions) == 0


@virtual
async def test_a_cancelled_flush_forgets_nothing(world: World) -> None:
    slow = True
    queue = world.queue(plan=lambda _kind, _key: Slow(5) if slow else None)
    deletions = Deletions(queue.store)
    for key in fill(world, 3):
        deletions.add(key, read_at=world.clock.monotonic())
    flushing = asyncio.create_task(deletions.flush())
    await world.clock.sleep(1)
    flushing.cancel()
    await asyncio.wait({flushing})
    slow = False
    await deletions.flush()
    assert world.keys() == []


@virtual
async def test_what_is_added_during_a_flush_waits_for_the_next(world: World) -> None:
    queue = world.queue(plan=lambda _kind, _key: Slow(5))
    deletions = Deletions(queue.store)
    first, second = fill(world, 2)
    deletions.add(first, read_at=world.clock.monotonic())
    flushing = asyncio.create_task(deletions.flush())
    await world.clock.sleep(1)
    deletions.add(second, read_at=world.clock.monotonic())
    await flushing
    assert world.keys() == [second]
    await deletions.flush()
    assert world.keys() == []


@virtual
async def test_a_slow_store_is_sent_several_requests_at_once(world: World) -> None:
    queue = world.queue(plan=lambda _kind, _key: Slow(5))
    deletions = Deletions(queue.store)
    for key in fill(world, 5500):
        deletions.add(key, read_at=world.clock.monotonic())
    began = world.clock.monotonic()
    await deletions.flush()
    assert (world.keys(), requests(queue).counts) == ([], {"delete_many": 6})
    assert world.clock.monotonic() - began == 10, "four, and then the other two"


@virtual
async def test_what_is_gone_is_told(world: World) -> None:
    told: list[str] = []
    away = True
    queue = world.queue(plan=lambda _kind, _key: Lost() if away else None)
    deletions = Deletions(queue.store, told.extend)
    for key in fill(world, 3):
        deletions.add(key, read_at=world.clock.monotonic())
    await deletions.flush()
    assert told == []
    away = False
    await deletions.flush()
    assert told == fill(world, 3)
