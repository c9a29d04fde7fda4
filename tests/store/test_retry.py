"""The retry layer over a store that misbehaves on cue. All of it in virtual time."""

import asyncio
import gc
import itertools
import logging
import math
import weakref

import pytest

from buquet.errors import AccessDenied, OutcomeUnknown, Unavailable
from buquet.store.interface import (
    FENCE_S,
    Always,
    Blob,
    FenceExpired,
    IfAbsent,
    IfMatches,
    Undecided,
    Written,
)
from buquet.store.memory import MemoryStore
from buquet.store.retry import Open, RetryBudget, Retrying, RetryLimits, backoff_s, judge
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
    at_random,
    scripted,
)

KEY = "tasks/a/1.json"
MINE, THEIRS = b'{"nonce":"mine"}', b'{"nonce":"theirs"}'


class Bench:
    """A retrying store above a counting one above a faulty one above a memory store."""

    def __init__(self, clock: VirtualClock, faults=(), **limits):
        self.clock = clock
        self.real = MemoryStore(clock)
        self.faulty = FaultyStore(self.real, clock, scripted(faults))
        self.wire = CountingStore(self.faulty)
        self.wire.requests = []
        self.store = Retrying(self.wire, clock, RetryLimits(**limits))

    @property
    def kinds(self) -> str:
        return " ".join(kind for kind, _ in self.wire.requests)

    async def body(self) -> bytes | None:
        blob = await self.real.get(KEY)
        return None if blob is None else blob.body

    def interject(self, number: int, action) -> None:
        """Run `action` just before request `number` (from 0) is served."""
        numbers, real_send = itertools.count(), self.faulty._send

        async def send(fault, serve):
            if next(numbers) == number:
                await action()
            return await real_send(fault, serve)

        self.faulty._send = send


def virtual(test):
    """Run an async test of one clock in virtual time."""

    def run():
        run_virtual(test)

    run.__name__ = test.__name__
    return run


# --- pauses and bounds ---------------------------------------------------------------------


def test_pauses_double_up_to_a_ceiling_and_are_fully_jittered():
    limits = RetryLimits(first_delay_s=0.1, max_delay_s=1.0)
    most = [backoff_s(limits, attempt, 1.0, None) for attempt in range(1, 7)]
    assert most == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff_s(limits, 3, 0.0, None) == 0.0
    assert backoff_s(limits, 3, 0.5, None) == pytest.approx(0.2)


def test_retry_after_is_a_floor_and_jitter_comes_on_top():
    limits = RetryLimits(first_delay_s=0.1)
    assert backoff_s(limits, 1, 0.0, 7.0) == 7.0
    assert backoff_s(limits, 1, 1.0, 7.0) == pytest.approx(7.1)


@virtual
async def test_retry_after_is_obeyed(clock):
    bench = Bench(clock, [Busy(retry_after_s=20)])
    assert await bench.store.get(KEY) is None
    assert 20 <= clock.monotonic() < 21


@virtual
async def test_a_retry_after_beyond_the_time_left_ends_the_call_at_once(clock):
    bench = Bench(clock, [Busy(retry_after_s=20)], total_s=10)
    with pytest.raises(Unavailable):
        await bench.store.get(KEY)
    assert clock.monotonic() == 0
    assert bench.kinds == "get"


@virtual
async def test_attempts_are_bounded(clock):
    bench = Bench(clock, [Lost()] * 99, attempts=4)
    with pytest.raises(Unavailable) as caught:
        await bench.store.get(KEY)
    assert bench.kinds == "get get get get"
    assert isinstance(caught.value.__cause__, Undecided)
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.key == KEY


@virtual
async def test_total_time_is_bounded(clock):
    bench = Bench(clock, [Slow(0), *[Lost()] * 999], attempts=999, total_s=30)
    await bench.store.get(KEY)
    with pytest.raises(Unavailable):
        await bench.store.get(KEY)
    assert 20 < clock.monotonic() <= 30


@virtual
async def test_every_read_is_repeated(clock):
    bench = Bench(clock, [Lost(), Busy(), LostReply(), None] * 3)
    await bench.real.put(KEY, MINE, Always())
    assert (await bench.store.get(KEY)).body == MINE
    assert (await bench.store.head(KEY)).size == len(MINE)
    assert [entry.key for entry in (await bench.store.list("tasks/")).entries] == [KEY]
    assert bench.wire.counts == {"get": 4, "head": 4, "list": 4}


@virtual
async def test_a_write_that_was_settled_is_not_left_to_the_garbage_collector(clock):
    """In an outage there would be many, each with its body."""

    class Ours:
        def __call__(self, body: bytes) -> bool:
            return body == MINE

    gc.collect()
    gc.disable()
    try:
        for faults in ([Lost(), Lost()], [LostReply(), Lost()], [Conflict(), Busy()]):
            bench, ours = Bench(clock, faults), Ours()
            await bench.store.put(KEY, MINE, IfAbsent(clock.monotonic()), ours=ours)
            ended = weakref.ref(ours)
            del ours
            assert ended() is None, faults
    finally:
        gc.enable()


@virtual
async def test_refusals_are_not_repeated(clock):
    bench = Bench(clock, [Refused(AccessDenied("no", key=KEY, status=403, code="AccessDenied"))])
    with pytest.raises(AccessDenied) as caught:
        await bench.store.get(KEY)
    assert (caught.value.status, caught.value.code) == (403, "AccessDenied")
    assert bench.kinds == "get"


@virtual
async def test_retries_are_logged_at_debug_only(clock):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("buquet")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        await Bench(clock, [Lost()]).store.get(KEY)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert [record.levelname for record in records] == ["DEBUG"]
    assert KEY in records[0].getMessage()


# --- the budget ----------------------------------------------------------------------------


@virtual
async def test_the_budget_is_a_token_bucket(clock):
    budget = RetryBudget(clock, RetryLimits(burst=2, per_second=4, per_success=0.5))
    assert [budget.take(60) for _ in range(4)] == [0, 0, 0.25, 0.5]
    assert budget.take(0.5) is None  # the fifth would have to wait 0.75 s: nothing is taken
    assert budget.take(0.75) == 0.75
    await clock.sleep(100)
    assert [budget.take(60) for _ in range(3)] == [0, 0, 0.25]
    for _ in range(6):
        budget.earn()
    assert [budget.take(60) for _ in range(3)] == [0, 0, 0.25]


@virtual
async def test_a_dead_store_is_not_hammered(clock):
    bench = Bench(
        clock, [Lost()] * 10_000, attempts=1000, first_delay_s=0.01, max_delay_s=0.01, burst=20, per_second=5
    )
    results = await asyncio.gather(*(bench.store.get(str(n)) for n in range(100)), return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    assert 100 + 20 < bench.wire.total <= 100 + 20 + 60 * 5  # the back-off alone would allow 10,000
    assert 30 < clock.monotonic() <= 60  # spread, not spent at once


@virtual
async def test_nobody_sleeps_on_when_the_store_is_back(clock):
    """However long they would have to wait for their tokens; and they come back spread over a second."""
    bench = Bench(clock, total_s=600, attempts=1000)
    bench.faulty.plan = lambda _kind, _key: Lost() if clock.monotonic() < 120 else None
    bench.wire.requests = None
    calls = [asyncio.create_task(bench.store.get(str(number))) for number in range(500)]
    await clock.sleep(120)
    back = []
    for call in calls:
        call.add_done_callback(lambda _: back.append(clock.monotonic()))
    await asyncio.gather(*calls)
    assert max(back) - 120 < 3
    assert len(set(back)) > 400
    assert bench.store.back_at == min(back)


@virtual
async def test_an_idle_store_was_not_away(clock):
    bench = Bench(clock, [None, Lost()])
    for _ in range(3):
        await bench.store.get(KEY)
        await clock.sleep(60)
    assert bench.store.back_at == -math.inf


@pytest.mark.parametrize("put", [False, True])
def test_a_store_that_loses_every_fifth_request_is_not_slowed_down(put):
    async def scenario(clock):
        bench = Bench(clock, burst=20, per_second=1)
        bench.faulty.plan = at_random(clock, {Lost(): 0.2})
        for number in range(1000):
            await (
                bench.store.put(str(number), MINE, IfAbsent(None)) if put else bench.store.get(str(number))
            )
        assert bench.wire.total > 1200
        return clock.monotonic()

    # About 250 retries at 0.05 s and up; the trickle of one a second alone would take 230 s.
    assert run_virtual(scenario) < 40


# --- a conditional write that loses its reply ------------------------------------------------


@virtual
async def test_a_met_condition_costs_one_request(clock):
    bench = Bench(clock)
    written = await bench.store.put(KEY, MINE, IfAbsent(0.0))
    assert written == Written((await bench.real.get(KEY)).etag)
    assert bench.kinds == "put"


@virtual
async def test_an_unmet_condition_costs_one_request(clock):
    bench = Bench(clock)
    await bench.real.put(KEY, THEIRS, Always())
    assert await bench.store.put(KEY, MINE, IfAbsent(0.0)) is None
    assert await bench.store.put(KEY, MINE, IfMatches("other")) is None
    assert bench.kinds == "put put"


@virtual
async def test_busy_is_never_lost_and_needs_no_read(clock):
    bench = Bench(clock, [Busy(), Busy()])
    await bench.real.put(KEY, THEIRS, Always())
    assert await bench.store.put(KEY, MINE, IfAbsent(0.0)) is None
    assert bench.kinds == "put put put"  # nothing can have been applied: theirs is theirs


@pytest.mark.parametrize("create", [True, False])
def test_a_lost_request_is_sent_again(create):
    async def scenario(clock):
        bench = Bench(clock, [Lost(), Lost()])
        assert await bench.store.put(KEY, MINE, await _condition(bench, create=create)) is not None
        return bench.kinds, await bench.body()

    assert run_virtual(scenario) == ("put put put", MINE)


@pytest.mark.parametrize("create", [True, False])
def test_a_lost_reply_is_settled_by_reading_our_own_body(create):
    async def scenario(clock):
        bench = Bench(clock, [LostReply()])
        written = await bench.store.put(KEY, MINE, await _condition(bench, create=create))
        assert written == Written((await bench.real.get(KEY)).etag, None)
        return bench.kinds

    assert run_virtual(scenario) == "put put get"


@pytest.mark.parametrize("create", [True, False])
def test_a_lost_race_behind_a_lost_request_is_lost(create):
    async def scenario(clock):
        bench = Bench(clock, [Lost()])
        condition = await _condition(bench, create=create)
        bench.interject(1, lambda: bench.real.put(KEY, THEIRS, condition))
        assert await bench.store.put(KEY, MINE, condition) is None
        return bench.kinds, await bench.body()

    assert run_virtual(scenario) == ("put put get", THEIRS)


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.1, 1.0, 60.0])
def test_an_application_after_the_resend_changes_nothing(create, delay_s):
    """The first attempt lands before, between or after the resends: we win exactly once."""

    async def scenario(clock):
        bench = Bench(clock, [Late(delay_s), Lost()])
        condition = await _condition(bench, create=create)
        written = await bench.store.put(KEY, MINE, condition)
        assert written is not None
        after = await bench.real.put(KEY, THEIRS, IfMatches(written.etag))
        assert after is not None
        await bench.faulty.settle()
        return await bench.body()

    for seed in range(5):
        assert run_virtual(scenario, seed) == THEIRS


@pytest.mark.parametrize("create", [True, False])
def test_an_application_after_the_verdict_lost_fails(create):
    async def scenario(clock):
        bench = Bench(clock, [Late(60.0)])
        condition = await _condition(bench, create=create)
        bench.interject(1, lambda: bench.real.put(KEY, THEIRS, condition))
        assert await bench.store.put(KEY, MINE, condition) is None
        await bench.faulty.settle()
        assert clock.monotonic() >= 60
        return await bench.body()

    assert run_virtual(scenario) == THEIRS


@pytest.mark.parametrize("create", [True, False])
def test_the_state_before_us_is_not_lost(create):
    """The store says "not met", then shows the old state: only a resend can decide."""

    async def scenario(clock):
        bench = Bench(clock, [LostReply()])
        condition = await _condition(bench, create=create)
        stale, real_get = [await bench.real.get(KEY)], bench.faulty.get

        async def stale_once(key):
            return stale.pop() if stale else await real_get(key)

        bench.faulty.get = stale_once
        assert await bench.store.put(KEY, MINE, condition) is not None
        return bench.kinds

    assert run_virtual(scenario) == "put put get put get"


@virtual
async def test_a_changed_object_that_stands_on_ours_is_won_and_its_body_returned(clock):
    bench = Bench(clock, [LostReply()])
    condition = await _condition(bench, create=False)
    flagged = MINE + b"+cancelled"
    bench.interject(1, lambda: bench.real.put(KEY, flagged, Always()))
    written = await bench.store.put(KEY, MINE, condition, ours=lambda body: body.startswith(MINE))
    assert written == Written((await bench.real.get(KEY)).etag, flagged)


@virtual
async def test_a_changed_object_is_lost_to_a_caller_without_a_predicate(clock):
    bench = Bench(clock, [LostReply()])
    condition = await _condition(bench, create=False)
    bench.interject(1, lambda: bench.real.put(KEY, MINE + b"+cancelled", Always()))
    assert await bench.store.put(KEY, MINE, condition) is None


@virtual
async def test_an_object_deleted_meanwhile_is_lost_to_a_replacement(clock):
    bench = Bench(clock, [LostReply()])
    condition = await _condition(bench, create=False)
    bench.interject(1, lambda: bench.real.delete(KEY, read_at=None))
    assert await bench.store.put(KEY, MINE, condition) is None
    assert bench.kinds == "put put get"


# --- 409 -------------------------------------------------------------------------------------


@virtual
async def test_a_conflict_re_reads_before_it_replaces_again(clock):
    bench = Bench(clock, [Conflict()])
    condition = await _condition(bench, create=False)
    assert await bench.store.put(KEY, MINE, condition) is not None
    assert bench.kinds == "put get put"


@virtual
async def test_a_conflict_with_a_winner_is_lost_without_a_resend(clock):
    bench = Bench(clock, [Conflict()])
    condition = await _condition(bench, create=False)
    bench.interject(1, lambda: bench.real.put(KEY, THEIRS, condition))
    assert await bench.store.put(KEY, MINE, condition) is None
    assert bench.kinds == "put get"


@virtual
async def test_a_conflict_that_was_applied_after_all_is_won(clock):
    bench = Bench(clock, [Conflict()])
    condition = await _condition(bench, create=False)
    bench.interject(1, lambda: bench.real.put(KEY, MINE, condition))
    assert await bench.store.put(KEY, MINE, condition) is not None
    assert bench.kinds == "put get"


@virtual
async def test_a_conflict_over_a_create_is_sent_again_at_once(clock):
    bench = Bench(clock, [Conflict()])
    assert await bench.store.put(KEY, MINE, IfAbsent(0.0)) is not None
    assert bench.kinds == "put put"


# --- what stays open -------------------------------------------------------------------------


@virtual
async def test_exhausted_after_a_lost_reply_is_an_unknown_outcome(clock):
    bench = Bench(clock, [LostReply(), *[Busy()] * 99], attempts=5)
    with pytest.raises(OutcomeUnknown) as caught:
        await bench.store.put(KEY, MINE, IfAbsent(0.0))
    assert caught.value.key == KEY
    assert KEY in str(caught.value)
    assert isinstance(caught.value.__cause__, Undecided)


@virtual
async def test_exhausted_where_nothing_can_have_been_applied_is_unavailable(clock):
    bench = Bench(clock, [Busy()] * 99, attempts=5)
    for write in (
        lambda: bench.store.put(KEY, MINE, IfAbsent(None)),
        lambda: bench.store.put(KEY, MINE, Always()),
        lambda: bench.store.delete(KEY, read_at=None),
        lambda: bench.store.delete_many([KEY], read_at=None),
    ):
        with pytest.raises(Unavailable):
            await write()
    assert bench.wire.total == 20


@virtual
async def test_a_read_that_fails_while_settling_leaves_the_outcome_unknown(clock):
    bench = Bench(clock, [LostReply(), None, *[Busy()] * 99], attempts=5)
    with pytest.raises(OutcomeUnknown):
        await bench.store.put(KEY, MINE, IfAbsent(0.0))
    assert bench.kinds == "put put get get get get"


@pytest.mark.parametrize("faults", [[LostReply()], [LostReply(), None]], ids=["resend", "settling read"])
def test_a_refusal_after_a_lost_reply_leaves_the_outcome_unknown(faults):
    async def scenario(clock):
        bench = Bench(clock, [*faults, Refused(AccessDenied("the token has expired"))])
        with pytest.raises(OutcomeUnknown) as caught:
            await bench.store.put(KEY, MINE, IfAbsent(0.0))
        assert isinstance(caught.value.__cause__, AccessDenied)

    run_virtual(scenario)


@virtual
async def test_unconditional_writes_and_deletes_are_sent_again(clock):
    bench = Bench(clock, [LostReply(), None, Lost(), None, LostReply(), None])
    assert await bench.store.put(KEY, MINE, Always()) is not None
    await bench.store.delete(KEY, read_at=0.0)
    assert await bench.body() is None
    assert await bench.store.delete_many([KEY], read_at=0.0) == []
    assert bench.kinds == "put put delete delete delete_many delete_many"


@virtual
async def test_a_delete_that_stays_undecided_is_an_unknown_outcome(clock):
    bench = Bench(clock, [Lost()] * 99, attempts=3)
    with pytest.raises(OutcomeUnknown):
        await bench.store.delete(KEY, read_at=None)


# --- the fence -------------------------------------------------------------------------------


@virtual
async def test_an_expired_decision_is_not_sent(clock):
    bench = Bench(clock)
    await clock.sleep(FENCE_S + 1)
    with pytest.raises(FenceExpired):
        await bench.store.put(KEY, MINE, IfAbsent(0.0))
    with pytest.raises(FenceExpired):
        await bench.store.delete(KEY, read_at=0.0)


@virtual
async def test_a_decision_that_expires_while_the_store_is_busy_is_made_anew(clock):
    bench = Bench(clock, [Busy(retry_after_s=30)])
    await clock.sleep(FENCE_S - 10)
    with pytest.raises(FenceExpired):
        await bench.store.put(KEY, MINE, IfAbsent(0.0))


async def _expiring(clock, fault, write, meanwhile=None):
    """Let a decision expire between a first attempt that met `fault` and its resend."""
    bench = Bench(clock, [fault])
    await clock.sleep(FENCE_S - 0.0001)
    if meanwhile is not None:
        bench.interject(1, lambda: meanwhile(bench))
    bench.store._limits = RetryLimits(first_delay_s=10)
    try:
        return await write(bench), bench.kinds
    except OutcomeUnknown as unknown:
        return type(unknown.__cause__), bench.kinds


def _create(bench):
    return bench.store.put(KEY, MINE, IfAbsent(0.0))


def test_a_create_that_expires_in_doubt_is_settled_by_a_read():
    async def won(clock):
        return await _expiring(clock, LostReply(), _create)

    async def lost(clock):
        return await _expiring(clock, Lost(), _create, lambda bench: bench.real.put(KEY, THEIRS, Always()))

    async def unknown(clock):
        return await _expiring(clock, Lost(), _create)

    written, kinds = run_virtual(won)
    assert (written.body, kinds) == (None, "put put get")
    assert run_virtual(lost) == (None, "put put get")
    assert run_virtual(unknown) == (FenceExpired, "put put get")


def test_a_delete_that_expires_in_doubt_is_settled_by_a_read():
    def scenario(fault):
        async def write(bench):
            await bench.real.put(KEY, THEIRS, Always())
            await bench.store.delete(KEY, read_at=0.0)

        return lambda clock: _expiring(clock, fault, write)

    assert run_virtual(scenario(LostReply())) == (None, "delete delete get")
    assert run_virtual(scenario(Lost())) == (FenceExpired, "delete delete get")


def test_a_batch_delete_that_expires_in_doubt_is_unknown():
    async def scenario(clock):
        return await _expiring(clock, Lost(), lambda bench: bench.store.delete_many([KEY], read_at=0.0))

    assert run_virtual(scenario) == (FenceExpired, "delete_many delete_many")


# --- the rest --------------------------------------------------------------------------------


@virtual
async def test_once_makes_a_single_attempt(clock):
    bench = Bench(clock, [LostReply()])
    with pytest.raises(Undecided):
        await bench.store.once.put(KEY, MINE, IfAbsent(0.0))
    assert bench.kinds == "put"


@virtual
async def test_a_cancelled_call_ends_at_once(clock):
    bench = Bench(clock, [Busy(retry_after_s=30)])
    call = asyncio.ensure_future(bench.store.put(KEY, MINE, Always()))
    await clock.sleep(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert clock.monotonic() == 1
    await clock.sleep(60)
    assert bench.kinds == "put"


@virtual
async def test_capabilities_and_time_are_those_of_the_store_below(clock):
    bench = Bench(clock)
    assert bench.store.capabilities is bench.real.capabilities
    assert bench.store.time is bench.real.time


def _blob(body: bytes, etag: str = "e") -> Blob:
    return Blob(KEY, body, etag, 0, 0)


@pytest.mark.parametrize(
    ("blob", "condition", "found"),
    [
        (_blob(MINE), IfAbsent(None), Written("e")),
        (_blob(THEIRS), IfAbsent(None), None),
        (None, IfAbsent(None), Open.OPEN),
        (_blob(MINE), IfMatches("old"), Written("e")),
        (_blob(THEIRS), IfMatches("old"), None),
        (_blob(THEIRS, "old"), IfMatches("old"), Open.OPEN),
        (None, IfMatches("old"), None),
    ],
)
def test_findings(blob, condition, found):
    assert judge(blob, MINE, condition, lambda body: body == MINE) == found


def test_increments_under_random_faults_are_never_lost_or_doubled():
    """Eight clients, every kind of fault: what the clients know to have won is what is there."""
    odds = {
        Lost(): 0.08,
        LostReply(): 0.08,
        Late(0.05): 0.04,
        Late(3.0): 0.04,
        Conflict(): 0.05,
        Busy(): 0.05,
        Slow(0.2): 0.1,
    }

    async def scenario(clock):
        real = MemoryStore(clock)
        await real.put(KEY, b"0 start", Always())

        async def client(name):
            mine = VirtualClock(clock.loop, f"{clock.bits(32)}/{name}")
            store = Retrying(FaultyStore(real, mine, at_random(mine, odds)), mine)
            won = 0
            while won < 10:
                blob = await store.get(KEY)
                count = int(blob.body.split()[0])
                body = b"%d %x" % (count + 1, mine.bits(128))
                won += await store.put(KEY, body, IfMatches(blob.etag)) is not None
            return won

        total = sum(await asyncio.gather(*(client(name) for name in range(8))))
        await clock.sleep(60)
        # A win that was overwritten before it could be read back counts as lost: never the reverse.
        return int((await real.get(KEY)).body.split()[0]), total

    for seed in range(10):
        count, total = run_virtual(scenario, seed)
        assert total == 80
        assert count >= total
        assert run_virtual(scenario, seed) == (count, total)


async def _condition(bench, *, create):
    if create:
        return IfAbsent(read_at=bench.clock.monotonic())
    return IfMatches((await bench.real.put(KEY, b"before", Always())).etag)
