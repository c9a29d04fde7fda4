"""One process's session: its creation, its heartbeats and their journal, its end (rules 11, 12, 18)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from fleet import Line, sessions
from virtual import World, requests, virtual

from buquet.clock import SystemClock
from buquet.errors import AccessDenied, StoreError
from buquet.heartbeat import HEARTBEAT_LIMITS, Heartbeat, Profile, Pulse
from buquet.incarnation import Incarnation
from buquet.protocol.keys import Keys
from buquet.protocol.session import TOMBSTONE, buried, decode, encode, session_key
from buquet.queue import Queue
from buquet.store.interface import Always
from buquet.store.memory import MemoryBucket, MemoryStore
from buquet.store.retry import Retrying
from buquet.testing.faulty import Busy, Conflict, Fault, Late, Lost, LostReply, Refused, Slow, scripted
from buquet.watch import Watch

LEASE_END = "2027-01-15T09:00:00.000Z"


class Heart:
    """A heartbeat in virtual time, and what it has told."""

    def __init__(self, world: World, plan: Callable[[str, str], Any] = lambda _kind, _key: None) -> None:
        self.world = world
        self.queue = world.queue(plan=plan)
        self.told: list[list[str]] = []
        """The leases that were told to be journaled, a list for each acknowledged heartbeat."""
        store = Retrying(self.queue.store.once, world.clock, HEARTBEAT_LIMITS)
        profile = Profile(worker_id="w", role="w")
        self.heartbeat = Heartbeat(store, "", profile, on_journaled=self.told.append)

    @property
    def me(self) -> Incarnation:
        return self.heartbeat.me

    @property
    def key(self) -> str:
        return session_key("", self.me.worker_id, self.me.id)

    def enter(self, lease_id: str) -> None:
        self.me.enter(
            "01a228b4-8bdd-7000-9548-987c2d22c58b", lease_id, LEASE_END, now=self.world.clock.monotonic()
        )

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        await self.heartbeat.create()
        running = asyncio.create_task(self.heartbeat.run())
        try:
            yield
        finally:
            self.heartbeat.stop()
            await running

    @property
    def journaled(self) -> list[str]:
        return [lease_id for told in self.told for lease_id in told]

    def stands(self) -> list[str]:
        """The leases in the journal that stands in the bucket."""
        found = self.world.bucket.get(self.key)
        assert found is not None
        return [entry.lease_id for entry in decode(found.body).journal]


# --- the creation --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Lost(), LostReply(), Conflict(), Busy(), Late(5)], ids=str)
@virtual
async def test_one_creating_put_an_incarnation(world: World, fault: Fault) -> None:
    """Undecided, it is looked for; if it is not there, another incarnation is created instead."""
    faults = scripted([fault])
    heart = Heart(world, lambda kind, _key: faults("", "") if kind == "put" else None)
    counted = requests(heart.queue)
    counted.requests = []
    first = heart.key
    await heart.heartbeat.create()
    puts = [key for kind, key in counted.requests if kind == "put"]
    assert len(puts) == len(set(puts))
    assert (puts == [first]) == isinstance(fault, LostReply)
    assert list(sessions(world)) == [heart.key] == puts[-1:]
    await world.clock.sleep(10)
    assert len(sessions(world)) == (2 if isinstance(fault, Late) else 1)


@virtual
async def test_a_creation_that_was_too_late_is_buried_by_monitors(world: World) -> None:
    faults = scripted([Late(5)])
    heart = Heart(world, lambda kind, _key: faults("", "") if kind == "put" else None)
    async with heart.beating():
        queue = world.queue()
        watch = Watch(queue.ledger, queue.store)
        for _ in range(6):
            await world.clock.sleep(15)
            await watch.check("m0")
        assert list(sessions(world)) == [heart.key]


@virtual
async def test_a_refusal_of_the_creation_is_an_error(world: World) -> None:
    heart = Heart(world, lambda _kind, _key: Refused(AccessDenied("no", key="k")))
    with pytest.raises(AccessDenied):
        await heart.heartbeat.create()


# --- beating -------------------------------------------------------------------------------


@virtual
async def test_a_heartbeat_every_ten_seconds(world: World) -> None:
    heart = Heart(world)
    async with heart.beating():
        await world.clock.sleep(101)
        assert requests(heart.queue).counts == {"put": 11}
        assert sessions(world)[heart.key].rev == 10


@virtual
async def test_a_lease_is_journaled_within_a_second(world: World) -> None:
    heart = Heart(world)
    async with heart.beating():
        await world.clock.sleep(3.3)
        heart.enter("a")
        await world.clock.sleep(0.9)
        assert heart.stands() == []
        await world.clock.sleep(0.11)
        assert heart.stands() == heart.journaled == ["a"]
        heart.me.leave("a")
        await world.clock.sleep(11)
        assert heart.stands() == []


@virtual
async def test_short_leases_are_never_journaled(world: World) -> None:
    heart = Heart(world)
    async with heart.beating():
        for number in range(300):
            heart.enter(f"{number}")
            if number:
                heart.me.leave(f"{number - 1}")
            await world.clock.sleep(0.4)
        assert requests(heart.queue).counts["put"] == 13
        # Each regular heartbeat carries the two that were held just then, no more.
        assert len(heart.journaled) <= 2 * 13


@virtual
async def test_only_the_snapshot_that_was_sent_is_journaled(world: World) -> None:
    line = Line()
    heart = Heart(world, line)
    async with heart.beating():
        heart.enter("a")
        await world.clock.sleep(0.5)
        line.fault = Slow(1)
        await world.clock.sleep(1)  # the heartbeat is on its way
        heart.enter("b")
        await world.clock.sleep(0.6)
        assert heart.journaled == ["a"] == heart.stands()
        await world.clock.sleep(2)
        assert heart.journaled == ["a", "b"] == heart.stands()


@pytest.mark.parametrize("fault", [Lost(), LostReply(), Conflict(), Busy()], ids=str)
@virtual
async def test_a_heartbeat_without_a_reply_is_settled_by_its_nonce(world: World, fault: Fault) -> None:
    line = Line()
    heart = Heart(world, line)
    async with heart.beating():
        first = heart.key
        heart.enter("a")
        await world.clock.sleep(0.9)
        line.fault = fault
        await world.clock.sleep(0.5)
        line.fault = None
        await world.clock.sleep(30)
        assert heart.key == first
        assert heart.journaled == ["a"] == heart.stands()


@virtual
async def test_a_heartbeat_that_is_applied_late_is_recognised(world: World) -> None:
    """It was given up, its successor meets 412; its journal is then the acknowledged one."""
    heart = Heart(world, lambda kind, _key: fault if kind == "put" else None)
    fault: Fault | None = None
    async with heart.beating():
        first = heart.key
        heart.enter("a")
        fault = Late(2)
        await world.clock.sleep(1.1)  # sent, and not yet served
        heart.enter("b")
        fault = Lost()
        await world.clock.sleep(10)
        assert heart.stands() == ["a"]
        assert heart.journaled == []
        fault = None
        await world.clock.sleep(2)
        assert heart.told == [["a"], ["b"]]
        assert heart.stands() == ["a", "b"]
        assert heart.key == first


@pytest.mark.parametrize("way", ["buried", "deleted", "junk"])
@virtual
async def test_one_that_was_declared_dead_begins_anew_with_nothing_in_flight(
    world: World, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    heart = Heart(world)
    async with heart.beating():
        heart.enter("a")
        await world.clock.sleep(2)
        old, key = heart.me, heart.key
        tombstone = buried(sessions(world)[key], nonce="f" * 32)
        if way == "deleted":
            world.bucket.delete(key)
        else:
            world.bucket.put(key, encode(tombstone) if way == "buried" else b"junk", Always())
        await world.clock.sleep(11)
        assert heart.me is not old
        assert (old.is_alive, heart.me.is_alive) == (False, True)
        assert (len(old), len(heart.me)) == (1, 0)
        assert heart.stands() == []
        assert "was declared dead; a new one begins" in caplog.text
        heart.enter("b")
        await world.clock.sleep(1.1)
        assert heart.stands() == ["b"]
        if way == "buried":
            assert sessions(world)[key] == tombstone


@virtual
async def test_its_back_off_stays_below_ten_seconds_and_it_survives(world: World) -> None:
    """The store is away for two minutes, and nobody else is there."""
    line, sent = Line(), []

    def plan(kind: str, key: str) -> Fault | None:
        sent.append(world.clock.monotonic())
        return line(kind, key)

    for fault in (Lost(), LostReply(), Busy(), Busy(3), Conflict()):
        heart = Heart(world, plan)
        async with heart.beating():
            await world.clock.sleep(15)
            key = heart.key
            line.fault = fault
            sent.clear()
            await world.clock.sleep(120)
            assert all(later - earlier < 10 for earlier, later in pairwise(sent))
            line.fault = None
            await world.clock.sleep(9)
            assert heart.key == key
            assert heart.heartbeat.may_claim
            await world.clock.sleep(60)
            assert heart.key == key


@virtual
async def test_nothing_may_be_claimed_under_a_session_that_may_be_dead(world: World) -> None:
    line = Line()
    heart = Heart(world, line)
    assert not heart.heartbeat.may_claim
    async with heart.beating():
        assert heart.heartbeat.may_claim
        await world.clock.sleep(15)
        line.fault = Lost()
        await world.clock.sleep(24)
        assert heart.heartbeat.may_claim
        await world.clock.sleep(2)
        assert not heart.heartbeat.may_claim
        line.fault = None
        await world.clock.sleep(10)
        assert heart.heartbeat.may_claim


@virtual
async def test_a_reply_that_was_seen_late_proves_no_life(world: World) -> None:
    """A process that stood still between a heartbeat and its reply may have been buried meanwhile."""
    line = Line()
    heart = Heart(world, line)
    async with heart.beating():
        await world.clock.sleep(9)
        line.fault = Slow(40)
        await world.clock.sleep(2)
        line.fault = Slow(5)
        await world.clock.sleep(40)
        assert sessions(world)[heart.key].rev == 1
        assert not heart.heartbeat.may_claim
        await world.clock.sleep(6)
        assert heart.heartbeat.may_claim


@virtual
async def test_no_error_ends_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for error in (StoreError("odd"), RuntimeError("odder")):
        line = Line()
        heart = Heart(world, line)
        async with heart.beating():
            line.fault = Refused(error)  # type: ignore[arg-type]
            await world.clock.sleep(15)
            line.fault = None
            await world.clock.sleep(3)
            assert sessions(world)[heart.key].rev == 1
    assert "odder" in caplog.text


# --- the end -------------------------------------------------------------------------------


@virtual
async def test_at_the_end_it_is_buried_then_deleted(world: World) -> None:
    states: list[Any] = []
    heart = Heart(
        world, lambda kind, _key: states.append((kind, [s.state for s in sessions(world).values()]))
    )
    async with heart.beating():
        await world.clock.sleep(1)
    states.clear()
    assert await heart.heartbeat.close()
    assert states == [("put", ["live"]), ("delete", [TOMBSTONE])]
    assert sessions(world) == {}
    assert not heart.heartbeat.may_claim


@virtual
async def test_with_a_lease_in_flight_it_is_left_to_the_monitors(world: World) -> None:
    heart = Heart(world)
    async with heart.beating():
        heart.enter("a")
        await world.clock.sleep(2)
    assert not await heart.heartbeat.close()
    assert heart.stands() == ["a"]


@pytest.mark.parametrize("fault", [Late(1), LostReply()], ids=str)
@virtual
async def test_the_last_heartbeat_may_have_been_undecided(world: World, fault: Fault) -> None:
    heart = Heart(world, lambda kind, _key: undecided if kind == "put" else Lost() if undecided else None)
    undecided: Fault | None = None
    async with heart.beating():
        await world.clock.sleep(9.9)
        undecided = fault
        await world.clock.sleep(0.2)
        undecided = Lost()
        heart.heartbeat.stop()
        await world.clock.sleep(20)
    undecided = None
    assert sessions(world)[heart.key].rev == 1
    assert await heart.heartbeat.close()
    assert sessions(world) == {}


@virtual
async def test_an_end_while_the_store_is_away_is_soon(world: World) -> None:
    line = Line()
    heart = Heart(world, line)
    async with heart.beating():
        line.fault = Lost()
    began = world.clock.monotonic()
    assert not await heart.heartbeat.close()
    assert world.clock.monotonic() - began < 15


# --- its host ------------------------------------------------------------------------------


def heart_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "buquet-heartbeat"]


def threaded(
    bucket: MemoryBucket, plan: Callable[[], None] = lambda: None, closed: list[bool] | None = None
) -> Queue:
    """A queue whose heartbeats live in a thread; `plan` is called before each of their requests."""
    clock = SystemClock()

    class Planned(MemoryStore):
        async def _request(self, step: Any) -> Any:
            plan()
            return await super()._request(step)

        async def close(self) -> None:
            await asyncio.sleep(0.05)
            if closed is not None:
                closed.append(True)

    return Queue(
        Retrying(MemoryStore(clock, bucket), clock),
        Keys(),
        open_store=lambda: Retrying(Planned(clock, bucket), clock),
    )


PROFILE = Profile(worker_id="w", role="w", interval_s=0.1, lifetime_s=0.3)


async def test_it_lives_in_a_thread_and_leaves_nothing() -> None:
    bucket, told, closed = MemoryBucket(SystemClock()), [], []
    loop_threads = set()

    def journaled(leases: list[str]) -> None:
        loop_threads.add(threading.current_thread())
        told.extend(leases)

    pulse = Pulse(threaded(bucket, closed=closed), PROFILE, journaled)
    await pulse.start()
    assert len(heart_threads()) == 1
    pulse.me.enter("01a228b4-8bdd-7000-9548-987c2d22c58b", "a", LEASE_END, now=SystemClock().monotonic())
    while not told:
        await asyncio.sleep(0.02)
    assert (told, loop_threads) == (["a"], {threading.main_thread()})
    pulse.me.leave("a")
    await pulse.stop()
    assert (heart_threads(), bucket.list("", "", 9)[0]) == ([], [])
    assert closed == [True]


async def test_a_store_that_cannot_be_opened_is_an_error() -> None:
    queue = threaded(MemoryBucket(SystemClock()))

    def fail() -> Retrying:
        raise FileNotFoundError("no such file")

    queue.open_store = fail
    async with asyncio.timeout(5):
        with pytest.raises(FileNotFoundError):
            await Pulse(queue, PROFILE, lambda _: None).start()
    assert heart_threads() == []


async def test_a_refused_session_is_an_error_and_leaves_no_thread() -> None:
    def refuse() -> None:
        raise AccessDenied("no", key="workers/")

    with pytest.raises(AccessDenied):
        await Pulse(threaded(MemoryBucket(SystemClock()), refuse), PROFILE, lambda _: None).start()
    assert heart_threads() == []


@pytest.mark.parametrize("after_s", [None, 0, 0.001, 0.01, 0.1])
async def test_a_start_that_is_cancelled_leaves_nothing(after_s: float | None) -> None:
    bucket = MemoryBucket(SystemClock())
    starting = asyncio.create_task(Pulse(threaded(bucket), PROFILE, lambda _: None).start())
    if after_s is not None:
        await asyncio.sleep(after_s)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
        return  # it was sooner
    assert heart_threads() == []
    assert bucket.list("", "", 9)[0] == []


@virtual
async def test_a_start_without_an_answer_can_be_abandoned(world: World) -> None:
    pulse = Pulse(world.queue(plan=lambda _kind, _key: Lost()), PROFILE, lambda _: None)
    starting = asyncio.create_task(pulse.start())
    await world.clock.sleep(30)
    assert not starting.done()
    pulse.abandon()
    async with asyncio.timeout(15):
        await starting
    assert not pulse.may_claim
    await pulse.stop()
    assert len(asyncio.all_tasks()) == 1
