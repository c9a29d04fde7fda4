"""Pacing: one write to a key per interval, other keys and reads at once."""

import asyncio

import pytest

from buquet.store.interface import Always, Capabilities, IfMatches, Undecided
from buquet.store.memory import MemoryStore
from buquet.store.pace import Paced
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.faulty import Busy, FaultyStore, Slow, scripted


def _store(clock: VirtualClock, faults=()) -> Paced:
    store = FaultyStore(MemoryStore(clock), clock, scripted(faults))
    store._store.capabilities = Capabilities(name="slow", write_interval_s=1.0)
    return Paced(store, clock)


def test_the_interval_counts_from_the_last_reply():
    async def scenario(clock):
        store = _store(clock, [Slow(3.0), None])
        written = await store.put("a/1", b"1", Always())
        assert clock.monotonic() == 3
        await clock.sleep(0.25)
        assert await store.put("a/1", b"2", IfMatches(written.etag)) is not None
        assert clock.monotonic() == pytest.approx(4)
        await clock.sleep(5)
        await store.put("a/1", b"3", Always())
        return clock.monotonic()

    assert run_virtual(scenario) == pytest.approx(9)


def test_a_failed_write_counts_too():
    async def scenario(clock):
        store = _store(clock, [Busy()])
        with pytest.raises(Undecided):
            await store.put("a/1", b"", Always())
        await store.put("a/1", b"", Always())
        return clock.monotonic()

    assert run_virtual(scenario) == pytest.approx(1)


def test_other_keys_and_other_requests_do_not_wait():
    async def scenario(clock):
        store = _store(clock)
        for number in range(100):
            await store.put(f"a/{number}", b"", Always())
        assert (await store.get("a/5")).body == b""
        assert (await store.head("a/5")).size == 0
        assert len((await store.list("a/")).entries) == 100
        await store.delete("a/5", read_at=None)
        await store.delete_many(["a/6"], read_at=None)
        return clock.monotonic()

    assert run_virtual(scenario) == 0


def test_concurrent_writes_of_one_key_take_turns():
    async def scenario(clock):
        store, at = _store(clock), []

        async def write():
            await store.put("a/1", b"", Always())
            at.append(clock.monotonic())

        await asyncio.gather(*(write() for _ in range(4)))
        return at

    assert run_virtual(scenario) == pytest.approx([0, 1, 2, 3])


def test_memory_is_bounded_by_one_interval_of_writes():
    async def scenario(clock):
        store = _store(clock)
        for number in range(1000):
            await store.put(f"a/{number}", b"", Always())
            await clock.sleep(0.1)
        return len(store._free_at)

    assert run_virtual(scenario) <= 11
