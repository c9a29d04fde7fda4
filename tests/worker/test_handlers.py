"""Handlers of every kind, and what comes of what they return and raise."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from buquet import (
    PermanentError,
    RetryableError,
    RetryPolicy,
    Task,
    TaskContext,
    TaskStatus,
    Worker,
    WorkerRunOptions,
)
from buquet.clock import SystemClock
from buquet.errors import BuquetError, PoisonRecord
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.memory import MemoryStore
from buquet.store.retry import Retrying

BURST = WorkerRunOptions(burst=True, with_monitor=False)
AT_ONCE = RetryPolicy(initial_interval_ms=0)


async def run(queue: Queue, handler: Callable[..., Any], input: object = 5, **arguments: Any) -> Task:
    """Run one task to its end."""
    worker = Worker(queue, "w")
    worker.task("do")(handler)
    task = await queue.submit("do", input, **({"retry_policy": AT_ONCE} | arguments))
    await worker.run(BURST)
    done = await queue.get(task.id)
    assert done is not None
    return done


# --- kinds ---------------------------------------------------------------------------------


def plain(input):
    return ["plain", input]


async def coroutine(input):
    return ["coroutine", input]


def plain_with_context(input, ctx):
    return ["plain", input, ctx.attempt]


async def coroutine_with_context(input, ctx):
    return ["coroutine", input, ctx.attempt]


def keyword_only_context(input, *, ctx):
    return ["keyword", input, ctx.attempt]


def optional_context(input, ctx=None):
    return ["optional", input, ctx.attempt]


def other_default(input, colour="blue"):
    return [colour, input]


def anything(*arguments):
    return ["anything", *arguments]


def other_name(payload, context, /):
    return ["other name", payload, context.attempt]


async def with_prefix(prefix, input, ctx):
    return [prefix, input, ctx.attempt]


class Handlers:
    def method(self, input):
        return ["method", input]

    async def coroutine_method(self, input, ctx):
        return ["coroutine method", input, ctx.attempt]

    @classmethod
    def class_method(cls, input):
        return ["class method", input]

    @staticmethod
    async def static_method(input):
        return ["static method", input]


class CallableObject:
    def __call__(self, input):
        return ["object", input]


class AsyncCallableObject:
    async def __call__(self, input, ctx):
        return ["async object", input, ctx.attempt]


KINDS: list[tuple[Callable[..., Any], list[Any]]] = [
    (plain, ["plain", 5]),
    (coroutine, ["coroutine", 5]),
    (plain_with_context, ["plain", 5, 1]),
    (coroutine_with_context, ["coroutine", 5, 1]),
    (keyword_only_context, ["keyword", 5, 1]),
    (optional_context, ["optional", 5, 1]),
    (other_default, ["blue", 5]),
    (anything, ["anything", 5]),
    (other_name, ["other name", 5, 1]),
    (lambda input: ["lambda", input], ["lambda", 5]),
    (Handlers().method, ["method", 5]),
    (Handlers().coroutine_method, ["coroutine method", 5, 1]),
    (Handlers.class_method, ["class method", 5]),
    (Handlers.static_method, ["static method", 5]),
    (functools.partial(with_prefix, "partial"), ["partial", 5, 1]),
    (functools.partial(functools.partial(with_prefix), "nested"), ["nested", 5, 1]),
    (functools.partial(other_default, colour="red"), ["red", 5]),
    (CallableObject(), ["object", 5]),
    (AsyncCallableObject(), ["async object", 5, 1]),
    (functools.partial(AsyncCallableObject()), ["async object", 5, 1]),
    (abs, 5),  # type: ignore[list-item]
    (str, "5"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("handler", "output"), KINDS)
async def test_handlers_of_every_kind(queue: Queue, handler: Callable[..., Any], output: object) -> None:
    done = await run(queue, handler)
    assert (done.status, done.output, done.last_error) == (TaskStatus.Completed, output, None)


async def test_a_plain_handler_has_a_thread_of_its_own_and_a_coroutine_the_loop(queue: Queue) -> None:
    threads: list[threading.Thread] = []
    await run(queue, lambda _input: threads.append(threading.current_thread()))

    async def note(_input: object) -> None:
        threads.append(threading.current_thread())

    await run(queue, note)
    own, loop = threads
    assert own is not threading.main_thread()
    assert own.daemon
    assert loop is threading.main_thread()


async def test_the_context_is_the_claimed_task(queue: Queue) -> None:
    seen: list[TaskContext] = []

    def handler(input: object, ctx: TaskContext) -> None:
        seen.append(ctx)

    done = await run(queue, handler, timeout_seconds=20)
    (context,) = seen
    assert (context.task_id, context.attempt) == (done.id, 1)
    assert (context.task.status, context.task.worker_id, context.task.input) == ("running", "w", 5)
    assert context.lease_expires_at == context.task.lease_expires_at
    assert (context.lease_expires_at - context.task.updated_at).total_seconds() == 30
    with pytest.raises(AttributeError):
        context.attempt = 2  # type: ignore[misc]


async def test_an_input_is_the_handler_s_own(queue: Queue) -> None:
    def handler(input: dict[str, Any]) -> None:
        input["list"].append(4)
        raise RetryableError(str(input["list"]))

    done = await run(queue, handler, {"list": [1]}, max_retries=1)
    assert done.last_error == "RetryableError: [1, 4]"
    assert done.input == {"list": [1]}


# --- registering ---------------------------------------------------------------------------


def no_argument():
    pass


def three_arguments(a, b, c):
    pass


def only_keywords(**keywords):
    pass


def other_keyword(input, *, colour):
    pass


@pytest.mark.parametrize("handler", [no_argument, three_arguments, only_keywords, other_keyword])
def test_a_handler_of_other_arguments_is_refused(handler: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"handler {handler.__name__} must take `input` or `input, ctx`"):
        Worker().task("do")(handler)


@pytest.mark.parametrize("handler", [None, 5, "send"])
def test_what_cannot_be_called_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match="a handler must be callable, not"):
        Worker().task("do")(handler)


def test_the_decorator_needs_its_type() -> None:
    with pytest.raises(TypeError, match="with the task type in parentheses"):
        Worker().task(plain)  # type: ignore[arg-type]


def test_a_type_has_one_handler() -> None:
    worker = Worker()
    assert worker.task("do")(plain) is plain
    with pytest.raises(ValueError, match="'do' already has a handler"):
        worker.task("do")(coroutine)
    worker.task("an other")(plain)
    assert worker.task_types == ["an other", "do"]


# --- what they raise -----------------------------------------------------------------------


class OfTheUser(RetryableError):
    pass


class ForGood(PermanentError):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("never printed")


RETRIED: list[tuple[BaseException, str]] = [
    (RetryableError("again"), "RetryableError: again"),
    (OfTheUser("mine"), "OfTheUser: mine"),
    (ValueError("x"), "ValueError: x"),
    (TimeoutError(), "TimeoutError: "),
    (PoisonRecord("read by the handler"), "PoisonRecord: read by the handler"),
    (asyncio.CancelledError("self"), "CancelledError: self"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt: "),
    (GeneratorExit("odd"), "GeneratorExit: odd"),
    (Unprintable(), "Unprintable: its text cannot be printed"),
    (ValueError("a\ud800"), "ValueError: a\\ud800"),
    (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("error", "message"), RETRIED)
async def test_whatever_is_raised_is_retried(
    queue: Queue, error: BaseException, message: str, is_async: bool
) -> None:
    def plain_raiser(_input: object) -> None:
        raise error

    async def async_raiser(_input: object) -> None:
        raise error

    done = await run(queue, async_raiser if is_async else plain_raiser, max_retries=1)
    assert (done.status, done.attempt, done.retry_count) == (TaskStatus.Failed, 2, 1)
    assert done.last_error == message


@pytest.mark.parametrize("is_async", [True, False])
async def test_stop_iteration_is_an_error_like_any_other(queue: Queue, is_async: bool) -> None:
    def plain_raiser(_input: object) -> object:
        return next(iter([]))

    async def async_raiser(_input: object) -> object:
        return next(iter([]))

    async with asyncio.timeout(5):
        done = await run(queue, async_raiser if is_async else plain_raiser, max_retries=0)
    assert done.status == "failed"
    assert done.last_error is not None
    assert "raised StopIteration" in done.last_error


@pytest.mark.parametrize("error", [PermanentError("never"), ForGood("never")])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_permanent_error_is_not_retried(queue: Queue, error: Exception, is_async: bool) -> None:
    def plain_raiser(_input: object) -> None:
        raise error

    async def async_raiser(_input: object) -> None:
        raise error

    done = await run(queue, async_raiser if is_async else plain_raiser)
    assert (done.status, done.attempt, done.retry_count) == (TaskStatus.Failed, 1, 0)
    assert done.last_error == f"{type(error).__name__}: never"


async def test_three_retries_are_exactly_four_runs(queue: Queue) -> None:
    attempts: list[int] = []

    def handler(_input: object, ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(f"run {ctx.attempt}")

    done = await run(queue, handler)
    assert attempts == [1, 2, 3, 4]
    assert (done.status, done.retry_count, done.last_error) == ("failed", 3, "ValueError: run 4")
    history = await queue.get_history(done.id)
    assert [task.status.value for task in history] == [
        "pending",
        *["running", "pending"] * 3,
        "running",
        "failed",
    ]
    assert [task.last_error for task in history[2::2]] == [f"ValueError: run {run}" for run in (1, 2, 3, 4)]


async def test_a_traceback_says_where(queue: Queue) -> None:
    def somewhere_deep(_input: object) -> None:
        raise ValueError("x")

    done = await run(queue, somewhere_deep, max_retries=0)
    loaded = await queue.ledger.load(done.id)
    assert loaded is not None
    traceback = loaded.record.log[-1].traceback
    assert traceback is not None
    assert "somewhere_deep" in traceback
    assert traceback.endswith("ValueError: x\n")


async def test_a_long_error_is_cut(queue: Queue) -> None:
    def handler(_input: object) -> None:
        raise ValueError("x" * 100_000)

    done = await run(queue, handler, max_retries=0)
    assert done.last_error is not None
    assert len(done.last_error) == 2000


# --- what they return ----------------------------------------------------------------------


@pytest.mark.parametrize("output", [None, 0, "", [], {}, False, {"a": [1, {"b": None}]}, 2**64 - 1])
async def test_any_json_may_be_returned(queue: Queue, output: object) -> None:
    done = await run(queue, lambda _input: output)
    assert (done.status, done.output) == ("completed", output)


BAD_OUTPUTS: list[tuple[object, str]] = [
    ({"a": {1, 2}}, r"InvalidInputType: output.a is set"),
    ([0, object()], "InvalidInputType: output[1] is object"),
    ({"price": math.nan}, "InvalidInput: output.price is nan"),
    (b"x", "InvalidInputType: output is bytes"),
    ({1: 2}, "InvalidInputType: output has the key 1"),
    (2**64, "InvalidInput: output is an integer beyond 64 bits"),
    ("x" * (1 << 20), "InvalidInput: output is 1,048,578 bytes of JSON, the limit is 1,048,576"),
]


@pytest.mark.parametrize(("output", "message"), BAD_OUTPUTS)
async def test_what_json_cannot_hold_fails_for_good_and_names_the_field(
    queue: Queue, output: object, message: str
) -> None:
    done = await run(queue, lambda _input: output)
    assert (done.status, done.attempt, done.output) == ("failed", 1, None)
    assert done.last_error is not None
    assert done.last_error.startswith(message)


# --- time-outs -----------------------------------------------------------------------------


async def test_a_coroutine_that_takes_too_long_is_cancelled(queue: Queue) -> None:
    ended: list[str] = []

    async def handler(_input: object) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    done = await run(queue, handler, timeout_seconds=0.05, max_retries=1)
    assert ended == ["cancelled"] * 2
    assert (done.status, done.last_error) == ("failed", "TimeoutError: the handler ran longer than 0.05 s")


@pytest.mark.parametrize("reply", ["a result", ValueError("in clean-up")])
async def test_what_a_cancelled_coroutine_says_comes_too_late(
    queue: Queue, reply: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(_input: object) -> object:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if isinstance(reply, Exception):
                raise reply from None
        return reply

    done = await run(queue, handler, timeout_seconds=0.05, max_retries=0)
    assert done.last_error == "TimeoutError: the handler ran longer than 0.05 s"
    gc.collect()  # this is when asyncio complains of errors that nobody asked for
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_a_plain_handler_that_takes_too_long_keeps_its_slot_and_is_counted(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    worker = Worker(queue, "w", concurrency=1)

    @worker.task("slow")
    def slow(_input: object) -> None:
        go_on.wait(30)

    @worker.task("quick")
    def quick(_input: object) -> str:
        return "done"

    stuck = await queue.submit("slow", {}, timeout_seconds=0.05, max_retries=0, priority=0)
    running = asyncio.create_task(worker.run(WorkerRunOptions(with_monitor=False)))
    failed = await queue.wait(stuck.id, timeout_s=10)
    assert failed.last_error == "TimeoutError: the handler ran longer than 0.05 s"
    assert worker.counters.leftover == 1
    next_one = await queue.submit("quick", {})
    with pytest.raises(TimeoutError):
        await queue.wait(next_one.id, timeout_s=0.3)
    go_on.set()
    assert (await queue.wait(next_one.id, timeout_s=10)).output == "done"
    await worker.stop()
    await running
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_thread_that_never_ends_is_never_joined(queue: Queue) -> None:
    go_on = threading.Event()

    def handler(_input: object) -> None:
        go_on.wait(60)

    before = asyncio.get_running_loop().time()
    done = await run(queue, handler, timeout_seconds=0.05, max_retries=0)
    assert done.status == "failed"
    assert asyncio.get_running_loop().time() - before < 5
    go_on.set()


def test_errors_of_the_package_have_one_root() -> None:
    assert issubclass(RetryableError, BuquetError)
    assert issubclass(PermanentError, BuquetError)


async def test_a_plain_handler_that_returns_a_coroutine_is_told_so(queue: Queue) -> None:
    async def work(_input: object) -> None: ...

    task = await run(queue, lambda value: work(value))  # noqa: PLW0108 - no coroutine function itself
    assert task.status is TaskStatus.Failed
    assert "declare it with `async def`" in (task.last_error or "")


async def test_the_log_has_the_handlers_traceback_and_no_frame_of_ours(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(_input: object) -> None:
        raise KeyError("missing")

    with caplog.at_level(logging.DEBUG, "buquet"):
        await run(queue, crash, max_retries=0)
    (trace,) = [record.getMessage() for record in caplog.records if "Traceback" in record.getMessage()]
    assert 'raise KeyError("missing")' in trace
    assert "buquet/worker" not in trace


async def test_options_of_another_type_are_refused(queue: Queue) -> None:
    worker = Worker(queue)
    worker.task("do")(lambda _input: None)
    with pytest.raises(TypeError, match="WorkerRunOptions"):
        await worker.run({"burst": True})  # type: ignore[arg-type]


class OddExit(BaseException):
    """No Exception, so no `except Exception` catches it."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise OddExit


class OddDict(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no items today")


async def raises(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "work",
    [
        lambda _input: raises(OddExit("out")),
        lambda _input: raises(BaseExceptionGroup("both", [KeyboardInterrupt()])),
        lambda _input: raises(Unspeakable()),
    ],
)
async def test_whatever_a_handler_raises_ends_its_attempt(queue: Queue, work: Callable[..., Any]) -> None:
    async def handle(value: object) -> Any:
        return await work(value)

    task = await run(queue, handle, max_retries=0)
    assert task.status is TaskStatus.Failed
    assert task.last_error is not None
    assert "WorkerLost" not in task.last_error
    assert (await queue.store.list("workers/")).entries == ()  # nothing is left in flight


async def test_a_result_that_raises_when_it_is_looked_at_fails_for_good(queue: Queue) -> None:
    runs = []

    async def handle(_input: object) -> Any:
        runs.append(1)
        return OddDict(a=1)

    task = await run(queue, handle, max_retries=3)
    assert (task.status, len(runs)) == (TaskStatus.Failed, 1)
    assert "no items today" in (task.last_error or "")


@pytest.mark.parametrize("task_type", ["", " ", "a\nb", "x" * 201])
def test_a_type_that_nobody_can_submit_has_no_handler(task_type: str) -> None:
    with pytest.raises(ValueError, match="task_type"):
        Worker().task(task_type)


def test_a_worker_runs_in_one_loop_after_another() -> None:
    worker = Worker()
    worker.task("do")(lambda _input: None)

    async def run_and_stop() -> None:
        clock = SystemClock()
        queue = Queue(Retrying(MemoryStore(clock), clock), Keys())
        running = asyncio.create_task(worker.run(WorkerRunOptions(with_monitor=False), queue=queue))
        await asyncio.sleep(0.05)
        await worker.stop()
        await running

    asyncio.run(run_and_stop())
    asyncio.run(run_and_stop())
