"""The store's time: an interval that narrows with every response and survives jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buquet.clock import DRIFT, StoreClock, SystemClock, token

START_S = 1_800_000_000.0


class HandClock:
    """A clock that only moves when told; its wall clock is wrong by `skew_s`."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self.now = 1000.0
        self.skew_s = skew_s

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return START_S + self.now + self.skew_s

    def true_ms(self) -> float:
        return (START_S + self.now) * 1000

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def uniform(self) -> float:
        return 0.5

    def bits(self, count: int) -> int:
        return (1 << count) - 1


def respond(
    clock: HandClock,
    store: StoreClock,
    there_s: float = 0.0,
    back_s: float = 0.0,
    resolution_ms: int = 1000,
    off_ms: float = 0.0,
) -> None:
    """Let one request take `there_s` to the server and `back_s` back, whose clock is off by `off_ms`."""
    sent = clock.now
    clock.now += there_s
    date_ms = int(clock.true_ms() + off_ms) // resolution_ms * resolution_ms
    clock.now += back_s
    store.observe(date_ms, resolution_ms=resolution_ms, sent=sent)


def holds_the_truth(clock: HandClock, store: StoreClock, off_ms: float = 0.0) -> bool:
    return store.lower_ms() <= clock.true_ms() + off_ms <= store.upper_ms() + 1


def test_before_any_response_it_is_the_local_clock() -> None:
    clock = HandClock(skew_s=3.0)
    store = StoreClock(clock)
    assert not store.synced
    assert store.now_ms() == store.lower_ms() == store.upper_ms() == int(clock.true_ms()) + 3000


def test_one_response_tells_the_time_to_a_second_and_the_way() -> None:
    clock = HandClock(skew_s=-7200)
    store = StoreClock(clock)
    respond(clock, store, there_s=0.1, back_s=0.3)
    assert store.synced
    assert holds_the_truth(clock, store)
    assert store.error_ms == pytest.approx(700)
    assert store.upper_ms() - store.lower_ms() == pytest.approx(1400, abs=2)


def test_whole_seconds_become_a_sub_second_estimate() -> None:
    clock = HandClock(skew_s=40)
    store = StoreClock(clock)
    for _ in range(30):
        respond(clock, store, there_s=0.01, back_s=0.01)
        clock.now += 0.37
    assert holds_the_truth(clock, store)
    assert store.error_ms < 60
    assert abs(store.now_ms() - clock.true_ms()) < 60


@given(
    skew_s=st.floats(-1e6, 1e6),
    trips=st.lists(
        st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 500), st.sampled_from([1, 1000])),
        min_size=1,
        max_size=40,
    ),
)
def test_the_truth_is_always_inside(skew_s: float, trips: list[tuple[float, float, float, int]]) -> None:
    clock = HandClock(skew_s)
    store = StoreClock(clock)
    for there_s, back_s, pause_s, resolution_ms in trips:
        respond(clock, store, there_s, back_s, resolution_ms)
        assert holds_the_truth(clock, store)
        assert store.lower_ms() <= store.now_ms() <= store.upper_ms()
        clock.now += pause_s
        assert holds_the_truth(clock, store)


def test_without_responses_the_error_grows_as_quartz_drifts() -> None:
    clock = HandClock()
    store = StoreClock(clock)
    respond(clock, store, resolution_ms=1)
    clock.now += 10_000
    assert store.error_ms == pytest.approx(0.5 + 10_000_000 * DRIFT)
    respond(clock, store, resolution_ms=1)
    assert store.error_ms == pytest.approx(0.5)


def test_a_small_disagreement_is_believed_at_once() -> None:
    clock = HandClock()
    store = StoreClock(clock)
    respond(clock, store, resolution_ms=1)
    respond(clock, store, resolution_ms=1, off_ms=-1500)
    assert holds_the_truth(clock, store, off_ms=-1500)


@pytest.mark.parametrize("off_ms", [-3_600_000, -4_000, 4_000, 86_400_000])
def test_a_jump_needs_three_witnesses(off_ms: float) -> None:
    clock = HandClock()
    store = StoreClock(clock)
    respond(clock, store)
    for _ in range(2):
        respond(clock, store, off_ms=off_ms)
        assert holds_the_truth(clock, store)
    respond(clock, store, off_ms=off_ms)
    assert holds_the_truth(clock, store, off_ms)
    assert not holds_the_truth(clock, store)


def test_one_good_answer_between_clears_the_doubts() -> None:
    clock = HandClock()
    store = StoreClock(clock)
    for off_ms in (0, 1e7, 1e7, 0, 1e7, 1e7):
        respond(clock, store, off_ms=off_ms)
    assert holds_the_truth(clock, store)


def test_witnesses_must_agree_with_each_other() -> None:
    clock = HandClock()
    store = StoreClock(clock)
    for off_ms in (0, 1e7, 2e7, 3e7, 1e7, 2e7):
        respond(clock, store, off_ms=off_ms)
    assert holds_the_truth(clock, store)


def test_a_late_reply_to_an_old_request_does_no_harm() -> None:
    clock = HandClock()
    store = StoreClock(clock)
    sent, date_ms = clock.now, int(clock.true_ms()) // 1000 * 1000
    clock.now += 200
    respond(clock, store)
    error_ms = store.error_ms
    store.observe(date_ms, sent=sent)
    assert holds_the_truth(clock, store)
    assert store.error_ms <= error_ms


def test_now_is_rfc_3339_text() -> None:
    clock = HandClock()
    store = StoreClock(clock)
    assert store.now() == "2027-01-15T08:16:40.000Z"


def test_a_token_is_128_bits_of_hex() -> None:
    assert token(HandClock()) == "f" * 32
    assert len({token(SystemClock()) for _ in range(1000)}) == 1000


@pytest.mark.parametrize("count", [1, 7, 8, 58, 128])
def test_bits_are_as_many_as_asked_for(count: int) -> None:
    drawn = [SystemClock().bits(count) for _ in range(200)]
    assert min(drawn) >= 0
    assert max(drawn) < 1 << count
    assert max(drawn) >= 1 << (count - 1)


async def test_the_clock_of_the_machine_moves_on() -> None:
    clock = SystemClock()
    before, wall = clock.monotonic(), clock.unix()
    await clock.sleep(0.01)
    assert 0.009 < clock.monotonic() - before < 5
    assert 0.009 < clock.unix() - wall < 5
    assert 0 <= clock.uniform() < 1
