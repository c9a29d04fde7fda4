"""Virtual time: it jumps, it is repeatable, and it says when it is stuck."""

import asyncio
import time

import pytest

from buquet.testing.clock import START, Stuck, VirtualClock, run_virtual


def test_a_day_takes_no_time():
    async def scenario(clock: VirtualClock):
        await clock.sleep(86_400.5)
        return clock.monotonic(), clock.unix()

    began = time.monotonic()
    assert run_virtual(scenario) == (86_400.5, START + 86_400.5)
    assert time.monotonic() - began < 1


def test_timers_fire_in_order_and_at_their_time():
    async def scenario(clock: VirtualClock):
        fired = []

        async def sleeper(seconds: float):
            await clock.sleep(seconds)
            fired.append((seconds, clock.monotonic()))

        await asyncio.gather(*(sleeper(seconds) for seconds in (3.0, 0.1, 100_000.7, 2.0)))
        return fired

    assert run_virtual(scenario) == [(at, pytest.approx(at)) for at in (0.1, 2.0, 3.0, 100_000.7)]


def test_time_outs_are_virtual():
    async def scenario(clock: VirtualClock):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await asyncio.Event().wait()
        return clock.monotonic()

    assert run_virtual(scenario) == pytest.approx(600)


async def _walk(clock: VirtualClock) -> list[tuple[int, float, int]]:
    """Twenty tasks that sleep by chance; who is served when depends on every number drawn."""
    trace = []

    async def walker(name: int):
        for _ in range(20):
            await clock.sleep(clock.uniform())
            trace.append((name, clock.monotonic(), clock.bits(64)))

    await asyncio.gather(*(walker(name) for name in range(20)))
    return trace


def test_one_seed_gives_one_trace():
    assert run_virtual(_walk, seed=1) == run_virtual(_walk, seed=1)
    assert run_virtual(_walk, seed=1) != run_virtual(_walk, seed=2)


def test_each_process_has_its_own_chance():
    async def scenario(clock: VirtualClock):
        first, second = VirtualClock(clock.loop, "7/a"), VirtualClock(clock.loop, "7/b", skew_s=-3)
        assert second.unix() - first.unix() == pytest.approx(-3)
        return first.bits(128), second.bits(128)

    first, second = run_virtual(scenario)
    assert first != second
    assert run_virtual(scenario) == (first, second)


def test_waiting_for_nothing_is_an_error_not_a_hang():
    async def scenario(clock: VirtualClock):
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run_virtual(scenario)


def test_threads_are_refused():
    async def scenario(clock: VirtualClock):
        await asyncio.to_thread(int)

    with pytest.raises(RuntimeError, match="no threads"):
        run_virtual(scenario)
