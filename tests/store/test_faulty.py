"""The tools themselves: a faulty store does what its plan says, a counting one counts."""

import pytest

from buquet.errors import AccessDenied
from buquet.store.interface import FENCE_S, Always, FenceExpired, IfAbsent, Undecided
from buquet.store.memory import MemoryStore
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.counting import CountingStore
from buquet.testing.faulty import (
    Busy,
    Conflict,
    FaultyStore,
    Late,
    Lost,
    LostReply,
    Refused,
    Slow,
    Stale,
    at_random,
    scripted,
)


@pytest.mark.parametrize(
    ("fault", "undecided", "stands"),
    [
        (None, None, True),
        (Lost(), (None, False, None), False),
        (LostReply(), (None, False, None), True),
        (Conflict(), (None, True, None), False),
        (Busy(3.0), (False, False, 3.0), False),
    ],
)
def test_faults_of_a_write(fault, undecided, stands):
    async def scenario(clock: VirtualClock):
        real = MemoryStore(clock)
        told = None
        try:
            await FaultyStore(real, clock, scripted([fault])).put("a/1", b"", Always())
        except Undecided as error:
            told = (error.applied, error.reread, error.retry_after_s)
        return told, await real.get("a/1") is not None

    assert run_virtual(scenario) == (undecided, stands)


def test_a_late_write_is_applied_after_the_client_gave_up():
    async def scenario(clock: VirtualClock):
        real = MemoryStore(clock)
        store = FaultyStore(real, clock, scripted([Late(5.0)]), timeout_s=10.0)
        await clock.sleep(FENCE_S - 12)
        with pytest.raises(Undecided):
            await store.put("a/1", b"", IfAbsent(0.0))
        assert clock.monotonic() == FENCE_S - 2
        assert await real.get("a/1") is None
        await store.settle()
        # The fence was checked where the request was signed.
        assert clock.monotonic() == FENCE_S + 3
        return await real.get("a/1") is not None

    assert run_virtual(scenario)


def test_the_fence_is_checked_before_a_fault_happens():
    async def scenario(clock: VirtualClock):
        store = FaultyStore(MemoryStore(clock), clock, scripted([Lost()] * 3))
        await clock.sleep(FENCE_S + 1)
        for request in (
            store.put("a/1", b"", IfAbsent(0.0)),
            store.delete("a/1", read_at=0.0),
            store.delete_many(["a/1"], read_at=0.0),
        ):
            with pytest.raises(FenceExpired):
                await request

    run_virtual(scenario)


def test_a_stale_listing_repeats_the_last_one_with_a_new_date():
    async def scenario(clock: VirtualClock):
        store = FaultyStore(MemoryStore(clock), clock, scripted([None, None, None, Stale(), Stale(), None]))
        await store.put("a/1", b"", Always())
        assert len((await store.list("a/")).entries) == 1
        await store.put("a/2", b"", Always())
        await clock.sleep(1)
        stale, other, fresh = (
            await store.list("a/"),
            await store.list("a/", after="a/1"),
            await store.list("a/"),
        )
        assert [entry.key for entry in stale.entries] == ["a/1"]
        assert [entry.key for entry in other.entries] == ["a/2"]  # never listed before
        assert len(fresh.entries) == 2
        assert stale.date_ms == fresh.date_ms

    run_virtual(scenario)


def test_slow_and_refused():
    async def scenario(clock: VirtualClock):
        store = FaultyStore(MemoryStore(clock), clock, scripted([Slow(4.0), Refused(AccessDenied("no"))]))
        await store.put("a/1", b"", Always())
        assert clock.monotonic() == 4
        with pytest.raises(AccessDenied):
            await store.get("a/1")

    run_virtual(scenario)


def test_odds_are_kept_and_repeatable():
    async def scenario(clock: VirtualClock):
        plan = at_random(clock, {Lost(): 0.1, Busy(): 0.3})
        return [plan("get", "a") for _ in range(10_000)]

    drawn = run_virtual(scenario, seed=3)
    assert drawn.count(Lost()) == pytest.approx(1000, rel=0.15)
    assert drawn.count(Busy()) == pytest.approx(3000, rel=0.1)
    assert drawn.count(None) == pytest.approx(6000, rel=0.1)
    assert run_virtual(scenario, seed=3) == drawn


def test_requests_are_counted_by_kind():
    async def scenario(clock: VirtualClock):
        store = CountingStore(FaultyStore(MemoryStore(clock), clock, scripted([Lost()])))
        with pytest.raises(Undecided):
            await store.put("a/1", b"", Always())
        await store.put("a/1", b"", Always())
        store.requests = []
        await store.get("a/1")
        await store.head("a/1")
        await store.list("a/")
        await store.delete("a/1", read_at=None)
        await store.delete_many(["a/2", "a/3"], read_at=None)
        return store.counts, store.total, store.requests

    counts, total, requests = run_virtual(scenario)
    assert counts == {"put": 2, "get": 1, "head": 1, "list": 1, "delete": 1, "delete_many": 1}
    assert total == 7
    assert requests == [
        ("get", "a/1"),
        ("head", "a/1"),
        ("list", "a/"),
        ("delete", "a/1"),
        ("delete_many", "a/2"),
    ]
