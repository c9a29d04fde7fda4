"""The memory store's own behaviour; what all stores share is in the contract suite."""

import asyncio
import threading
import time
from hashlib import md5

import pytest

from buquet.clock import SystemClock
from buquet.store.interface import FENCE_S, Always, FenceExpired, IfAbsent, IfMatches
from buquet.store.memory import MemoryBucket, MemoryStore, shared_bucket
from buquet.testing.clock import START, VirtualClock, run_virtual


def test_equal_bodies_have_equal_etags():
    async def scenario(clock: VirtualClock):
        store = MemoryStore(clock)
        first = await store.put("a/1", b"body", Always())
        second = await store.put("a/2", b"body", Always())
        return first.etag, second.etag

    assert run_virtual(scenario) == (md5(b"body").hexdigest(),) * 2


def test_times_come_from_the_servers_clock_not_the_clients():
    async def scenario(clock: VirtualClock):
        ahead = VirtualClock(clock.loop, skew_s=3600)
        store = MemoryStore(ahead, MemoryBucket(clock))
        await clock.sleep(5)
        await store.put("a/1", b"", Always())
        await clock.sleep(7)
        blob = await store.get("a/1")
        return blob.modified_ms, blob.date_ms, store.time.now_ms(), store.time.synced

    modified_ms, date_ms, now_ms, synced = run_virtual(scenario)
    assert (modified_ms, date_ms) == ((START + 5) * 1000, (START + 12) * 1000)
    assert synced
    assert now_ms == pytest.approx(date_ms, abs=3)


def test_times_can_be_truncated_to_seconds():
    async def scenario(clock: VirtualClock):
        store = MemoryStore(clock, resolution_ms=1000)
        await clock.sleep(1.75)
        await store.put("a/1", b"", Always())
        blob, entry, page = await store.get("a/1"), await store.head("a/1"), await store.list("a/")
        lower, upper = store.time.lower_ms(), store.time.upper_ms()
        assert lower <= clock.unix() * 1000 <= upper
        assert upper - lower > 500  # learned as one-second headers, not as exact ones
        return {blob.modified_ms, blob.date_ms, entry.modified_ms, page.date_ms, page.entries[0].modified_ms}

    assert run_virtual(scenario) == {(START + 1) * 1000}


def test_the_fence_is_checked():
    async def scenario(clock: VirtualClock):
        store = MemoryStore(clock)
        await store.put("a/1", b"", Always())
        read_at = clock.monotonic()
        await clock.sleep(FENCE_S + 1)
        for request in (
            store.put("a/2", b"", IfAbsent(read_at)),
            store.delete("a/1", read_at=read_at),
            store.delete_many(["a/1"], read_at=read_at),
        ):
            with pytest.raises(FenceExpired):
                await request
        return [entry.key for entry in (await store.list("a/")).entries]

    assert run_virtual(scenario) == ["a/1"]


def test_control_is_given_up_before_and_after_the_effect():
    bucket = MemoryBucket(SystemClock())
    put = MemoryStore(SystemClock(), bucket).put("a/1", b"", Always())
    put.send(None)
    assert bucket.get("a/1") is None
    put.send(None)
    assert bucket.get("a/1") is not None
    with pytest.raises(StopIteration):
        put.send(None)


def test_clients_of_one_bucket_share_it_and_a_race_has_one_winner():
    async def scenario(clock: VirtualClock):
        bucket = MemoryBucket(clock)
        stores = [MemoryStore(clock, bucket) for _ in range(8)]
        first = await stores[0].put("a/1", b"0", IfAbsent(None))
        bodies = [str(number + 1).encode() for number in range(8)]
        puts = (
            store.put("a/1", body, IfMatches(first.etag)) for store, body in zip(stores, bodies, strict=True)
        )
        return [written is not None for written in await asyncio.gather(*puts)].count(True)

    assert run_virtual(scenario) == 1


def test_a_shared_bucket_is_the_same_at_every_call():
    clock = SystemClock()
    assert shared_bucket(clock, "t", "one") is shared_bucket(clock, "t", "one")
    assert shared_bucket(clock, "t", "one") is not shared_bucket(clock, "t", "two")
    assert shared_bucket(clock, "t", "one") is not shared_bucket(clock, "u", "one")


def test_threads_may_share_a_bucket():
    bucket = MemoryBucket(SystemClock())

    def create_and_delete(number: int) -> None:
        for round_ in range(300):
            bucket.put(f"a/{round_}-{number}", b"", IfAbsent(None))
            if round_ % 3:
                bucket.delete(f"a/{round_}-{number}")

    threads = [threading.Thread(target=create_and_delete, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, truncated = bucket.list("a/", "", 1000)
    assert [key for key, _ in found] == sorted(f"a/{r}-{n}" for r in range(0, 300, 3) for n in range(4))
    assert not truncated


def test_a_hundred_thousand_keys_list_fast():
    bucket = MemoryBucket(SystemClock())
    for number in range(100_000):
        bucket.put(f"a/{number * 7919 % 100_000:06}", b"", Always())

    async def scenario():
        store = MemoryStore(SystemClock(), bucket)
        began = time.perf_counter()
        pages = [await store.list("a/", after=f"a/{start:06}") for start in range(90_000, 99_000, 100)]
        return pages, time.perf_counter() - began

    pages, seconds = asyncio.run(scenario())
    assert [entry.key for entry in pages[0].entries] == [f"a/{n:06}" for n in range(90_001, 91_001)]
    assert all(len(page.entries) == 1000 and page.truncated for page in pages)
    assert seconds < 1.5  # 90 pages; a scan or a sort for each takes several times that
