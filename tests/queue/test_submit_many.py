"""submit_many(): any number of tasks, in order, each with its own outcome, and never many at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import servers
from virtual import World, requests, virtual

from buquet import NewTask, OutcomeUnknown, Queue, RetryPolicy, Submitted, Unavailable, connect
from buquet.errors import AccessDenied, InvalidInput, InvalidInputType
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.faulty import Busy, Fault, Lost, LostReply, Refused, Slow

ROOT = Path(__file__).resolve().parent.parent.parent


def mails(count: int, **arguments: Any) -> Iterator[NewTask]:
    return (NewTask("mail", number, **arguments) for number in range(count))


class Source:
    """Items, and how many were taken of them."""

    def __init__(self, count: int, every_s: float | None = None) -> None:
        self.taken = 0
        self._count = count
        self._every_s = every_s

    def __iter__(self) -> Iterator[NewTask]:
        for item in mails(self._count):
            self.taken += 1
            yield item

    async def slowly(self, world: World, every_s: float) -> AsyncGenerator[NewTask, None]:
        for item in self:
            await world.clock.sleep(every_s)
            yield item


async def everything(results: AsyncIterator[Submitted]) -> list[Submitted]:
    return [submitted async for submitted in results]


def at_random(world: World, longest_s: float) -> Callable[[str, str], Fault]:
    return lambda _kind, _key: Slow(world.clock.uniform() * longest_s)


def by_priority(faults: dict[int, Fault]) -> Callable[[str, str], Fault | None]:
    """A plan that tells tasks apart by the one thing that their keys show."""
    return lambda _kind, key: faults.get(int(key.split("/")[2])) if key.startswith("ready/") else None


# --- what comes out ------------------------------------------------------------------------


@virtual
async def test_results_come_in_order_one_request_each(world: World) -> None:
    queue = world.queue(plan=at_random(world, 3.0))
    items = list(mails(200))
    results = await everything(queue.submit_many(items, concurrency=16))
    assert [result.new for result in results] == items
    assert [result.result().input for result in results] == list(range(200))
    assert requests(queue).counts == {"put": 200}
    for result in results:
        assert result.error is None
        assert await queue.get(result.result().id) == result.task


async def _each(items: list[NewTask]) -> AsyncIterator[NewTask]:
    for item in items:
        yield item


@pytest.mark.parametrize("form", [list, tuple, iter, _each, lambda items: dict.fromkeys(range(len(items)))])
@pytest.mark.parametrize("count", [0, 1, 5])
@virtual
async def test_any_iterable_will_do(world: World, form: Callable[[list[NewTask]], Any], count: int) -> None:
    results = await everything(world.queue().submit_many(form(list(mails(count)))))
    assert len(results) == count
    for number, result in enumerate(results):
        assert result.new == number or result.result().input == number


def test_a_new_task_has_the_arguments_of_submit() -> None:
    parameters = list(inspect.signature(Queue.submit).parameters.values())[1:]
    assert list(inspect.signature(NewTask).parameters.values()) == [
        parameter.replace(annotation=field.type)
        for parameter, field in zip(parameters, fields(NewTask), strict=True)
    ]


@virtual
async def test_a_task_is_as_submit_makes_it(world: World) -> None:
    queue = world.queue()
    due = (await queue.submit("mail", {})).created_at + timedelta(hours=1)
    policy = RetryPolicy(initial_interval_ms=5)
    new = NewTask("mail", [1, None], 2.5, 7, policy, due, priority=0)
    [result] = await everything(queue.submit_many([new]))
    task = result.result()
    assert (task.task_type, task.input, task.available_at) == ("mail", [1, None], due)
    assert (task.timeout_seconds, task.max_retries, task.retry_policy, task.priority) == (2.5, 7, policy, 0)


# --- errors --------------------------------------------------------------------------------


@virtual
async def test_an_error_stands_beside_its_input_and_stops_nothing(world: World) -> None:
    faults = {1: LostReply(), 2: Busy(), 3: Refused(AccessDenied("not here"))}
    queue = world.queue(plan=by_priority(faults))
    good = NewTask("mail", "good")
    items: list[Any] = [
        *(good, NewTask("", {}), good, NewTask("mail", {1, 2}), good, ("mail", {}), good),
        *(NewTask("mail", priority, priority=priority) for priority in faults),
        *(good, NewTask("mail", Odd()), good),
    ]
    results = await everything(queue.submit_many(items))
    assert [result.new for result in results] == items
    errors = {index: type(result.error) for index, result in enumerate(results) if result.error}
    assert errors == {
        1: InvalidInput,
        3: InvalidInputType,
        5: InvalidInputType,
        7: OutcomeUnknown,
        8: Unavailable,
        9: AccessDenied,
        11: ZeroDivisionError,
    }
    assert str(results[5].error) == "a task to submit must be a NewTask, not tuple"
    for result in results:
        assert (result.task is None) != (result.error is None)
        if result.error is not None:
            with pytest.raises(type(result.error)) as caught:
                result.result()
            assert caught.value is result.error
    assert isinstance(results[7].error, OutcomeUnknown)
    assert (await world.queue().get(results[7].error.task_id)).input == 1  # type: ignore[arg-type, union-attr]
    assert len(world.keys("ready/")) == 6 + 1


class Odd(dict[str, Any]):
    """What raises when it is looked at."""

    def items(self) -> Any:
        return 1 / 0


class Broken(Exception):
    """What a caller's own iterable raises."""


@pytest.mark.parametrize("is_async", [False, True])
@virtual
async def test_an_error_of_the_iterable_comes_after_all_results(world: World, is_async: bool) -> None:
    def broken() -> Iterator[NewTask]:
        yield from mails(20)
        raise Broken

    async def broken_too() -> AsyncIterator[NewTask]:
        for item in mails(20):
            yield item
        raise Broken

    queue = world.queue(plan=at_random(world, 3.0))
    results = queue.submit_many(broken_too() if is_async else broken(), concurrency=8)
    for number in range(20):
        assert (await anext(results)).result().input == number
    with pytest.raises(Broken):
        await anext(results)
    assert len(world.keys("ready/")) == 20
    with pytest.raises(StopAsyncIteration):
        await anext(results)


@pytest.mark.parametrize("tasks", [None, 5, NewTask("mail", {})])
@virtual
async def test_what_is_no_iterable_is_refused_at_once(world: World, tasks: Any) -> None:
    with pytest.raises(InvalidInputType, match="tasks must be an iterable or an async iterable of NewTask"):
        world.queue().submit_many(tasks)


@pytest.mark.parametrize(
    ("concurrency", "error"), [(0, ValueError), (1025, ValueError), ("8", TypeError), (True, TypeError)]
)
@virtual
async def test_a_concurrency_that_makes_no_sense(
    world: World, concurrency: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="concurrency must be"):
        world.queue().submit_many([], concurrency=concurrency)


# --- how many at once ----------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 8])
@virtual
async def test_never_more_in_flight_than_were_asked_for(world: World, concurrency: int) -> None:
    in_flight: list[float] = []

    def plan(_kind: str, _key: str) -> Fault:
        now = world.clock.monotonic()
        in_flight[:] = [ends_at for ends_at in in_flight if ends_at > now]
        in_flight.append(now + (took_s := 1 + world.clock.uniform()))
        assert len(in_flight) <= concurrency
        return Slow(took_s)

    queue = world.queue(plan=plan)
    results = await everything(queue.submit_many(mails(100), concurrency=concurrency))
    assert [result.result().input for result in results] == list(range(100))
    assert world.clock.monotonic() < 2 * 100 / concurrency


@virtual
async def test_nothing_is_taken_before_a_result_is_asked_for(world: World) -> None:
    source = Source(100)
    results = world.queue().submit_many(source)
    await world.clock.sleep(10)
    assert source.taken == 0
    await results.aclose()
    assert source.taken == 0


@virtual
async def test_a_slow_caller_holds_up_the_source(world: World) -> None:
    source, given = Source(1000), 0
    results = world.queue(plan=at_random(world, 0.1)).submit_many(source, concurrency=8)
    async for _ in results:
        given += 1
        await world.clock.sleep(1)
        assert source.taken - given == min(2 * 8, 1000 - given)
    assert given == 1000


@virtual
async def test_a_slow_submission_holds_up_only_its_successors_results(world: World) -> None:
    slow = iter([Slow(100.0)])
    queue = world.queue(plan=lambda _kind, _key: next(slow, None))
    source = Source(1000)
    results = queue.submit_many(source, concurrency=8)
    first = asyncio.ensure_future(anext(results))
    await world.clock.sleep(50)
    assert len(world.keys("ready/")) == 2 * 8 - 1
    assert (await first).new.input == 0
    assert [result.new.input async for result in results] == list(range(1, 1000))


@virtual
async def test_results_do_not_wait_for_a_slow_source(world: World) -> None:
    source = Source(10)
    async for result in world.queue().submit_many(source.slowly(world, 60)):
        assert world.clock.monotonic() - 60 * (result.new.input + 1) < 1


@virtual
async def test_a_generator_may_hold_a_time_out_over_its_items(world: World) -> None:
    """It is run in one asyncio task, as `async for` does it."""
    tasks = set()

    async def timed() -> AsyncIterator[NewTask]:
        async with asyncio.timeout(60):
            for item in mails(100):
                tasks.add(asyncio.current_task())
                yield item
                await world.clock.sleep(1)

    with pytest.raises(TimeoutError):
        await everything(world.queue().submit_many(timed(), concurrency=2))
    assert len(tasks) == 1
    assert len(world.keys("ready/")) in (60, 61)


# --- a store that is away ------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Busy(), Lost(), LostReply()])
@virtual
async def test_an_outage_costs_what_is_in_flight_and_a_few_more(world: World, fault: Fault) -> None:
    away_from, away_until, takes_s, count = 100.0, 700.0, 4.0, 6000

    def plan(_kind: str, _key: str) -> Fault:
        return fault if away_from < world.clock.monotonic() < away_until else Slow(takes_s)

    queue = world.queue(plan=plan)
    results = await everything(queue.submit_many(mails(count), concurrency=64))
    failed = [result.error for result in results if result.error is not None]
    assert 0 < len(failed) <= 64 + 10 * 10
    assert {type(error) for error in failed} <= {Unavailable, OutcomeUnknown}
    assert world.clock.monotonic() < away_until + 60 + takes_s * count / 64
    assert len(world.keys("ready/")) >= count - len(failed)


@virtual
async def test_a_refusal_is_no_outage(world: World) -> None:
    refused = Refused(AccessDenied("not here"))
    queue = world.queue(plan=lambda _kind, key: refused if "/3/" in key[7:] else Slow(1.0))
    items = [NewTask("mail", number, priority=3 if number % 2 else 5) for number in range(100)]
    results = await everything(queue.submit_many(items, concurrency=10))
    assert [result.new.input for result in results if result.error] == list(range(1, 100, 2))
    assert world.clock.monotonic() <= 50 / 10


# --- leaving early -------------------------------------------------------------------------


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if asyncio complains, now or when what is left is collected."""
    with caplog.at_level(logging.WARNING, "asyncio"):
        yield
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def _break(results: AsyncGenerator[Submitted, None]) -> None:
    async for result in results:
        if result.new.input == 20:
            break


async def _break_and_close(results: AsyncGenerator[Submitted, None]) -> None:
    async with contextlib.aclosing(results) as opened:
        await _break(opened)


async def _fail(results: AsyncGenerator[Submitted, None]) -> None:
    with contextlib.suppress(Broken):
        async for result in results:
            if result.new.input == 20:
                raise Broken


async def _be_cancelled(results: AsyncGenerator[Submitted, None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3.3):
            await everything(results)


async def _be_cancelled_between(results: AsyncGenerator[Submitted, None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3.3):
            async for _ in results:
                await asyncio.sleep(0.7)


LEAVE = [_break, _break_and_close, _fail, _be_cancelled, _be_cancelled_between]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.usefixtures("quiet")
@virtual
async def test_leaving_early_stops_everything(
    world: World, leave: Callable[..., Any], is_async: bool
) -> None:
    queue, source = world.queue(plan=at_random(world, 1.0)), Source(1000)
    await leave(queue.submit_many(source.slowly(world, 0.02) if is_async else source, concurrency=8))
    gc.collect()
    await world.clock.sleep(0.001)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    taken, sent = source.taken, requests(queue).total
    await world.clock.sleep(100)
    assert (source.taken, requests(queue).total) == (taken, sent)
    assert len(world.keys("ready/")) <= taken < 60


@virtual
async def test_nothing_is_left_once_it_is_closed(world: World) -> None:
    await _break_and_close(world.queue(plan=at_random(world, 1.0)).submit_many(mails(1000), concurrency=8))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.usefixtures("quiet")
def test_the_end_of_the_loop_stops_everything() -> None:
    kept: list[AsyncGenerator[Submitted, None]] = []

    async def scenario(clock: VirtualClock) -> None:
        kept.append(World(clock).queue(plan=lambda *_: Slow(1.0)).submit_many(mails(1000), concurrency=8))
        await _break(kept[0])

    run_virtual(scenario)


@pytest.mark.usefixtures("quiet")
@virtual
async def test_a_source_of_the_caller_s_own_may_be_gone_on_with(world: World) -> None:
    source = mails(100)
    await _break_and_close(world.queue().submit_many(source, concurrency=4))
    rest = [item.input for item in source]
    assert rest[0] <= 20 + 2 * 4 + 1
    assert rest == list(range(rest[0], 100))


@virtual
async def test_what_is_given_is_stored_and_what_is_not_may_be(world: World) -> None:
    queue, source, given = world.queue(plan=at_random(world, 1.0)), Source(1000), []
    async with contextlib.aclosing(queue.submit_many(source, concurrency=8)) as results:
        async for result in results:
            given.append(result.result())
            if len(given) == 100:
                break
    for task in given:
        assert await queue.get(task.id) == task
    assert 100 <= len(world.keys("ready/")) <= source.taken <= 100 + 2 * 8


# --- a real store --------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.usefixtures("quiet")
async def test_on_a_real_store(seaweedfs: servers.Server) -> None:
    async with connect(
        seaweedfs.endpoint,
        seaweedfs.new_bucket(),
        servers.REGION,
        access_key_id=servers.ACCESS_KEY_ID,
        secret_access_key=servers.SECRET_ACCESS_KEY,
    ) as queue:
        results = await everything(queue.submit_many(mails(500), concurrency=32))
        ids = [result.result().id for result in results]
        assert [result.result().input for result in results] == list(range(500))
        listed = [task.id for shard in queue.keys.shards() for task in await queue.list(shard)]
        assert sorted(listed) == sorted(ids)
        await _break(queue.submit_many(mails(500)))  # and closed while that is cleaned up
    gc.collect()
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- memory --------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_number() -> None:
    """With 50,000 tasks; `python bench/submit_many.py` does it with a million."""
    script = ROOT / "bench/submit_many.py"
    command = [sys.executable, "-P", str(script), "--tasks", "50000", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)
    assert (found["succeeded"], found["refused"]) == (49_950, 50)
    assert found["peak_mib"] < 100
    assert found["peak_mib"] < found["early_mib"] + 5
