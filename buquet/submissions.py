"""Submitting: one new task, or any number of them, so that each is durable before it is told of.

Example::

    photos = (NewTask("resize", {"photo": name}) for name in names)
    async for submitted in queue.submit_many(photos):
        if submitted.error is not None:
            print(submitted.new.input, submitted.error)

Errors: `InvalidInput` and `InvalidInputType` for what cannot be stored, `OutcomeUnknown` where no
reply told, `Unavailable` where nothing was stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from buquet._core import ident
from buquet._core.record import Record
from buquet.errors import InvalidInput, InvalidInputType, OutcomeUnknown, StoreError, Unavailable
from buquet.ledger import Ledger
from buquet.protocol.arguments import (
    check_integer,
    check_max_retries,
    check_task_type,
    check_timeout_seconds,
)
from buquet.protocol.retry_policy import RetryPolicy
from buquet.protocol.task import EPOCH, Task, task_of
from buquet.protocol.transitions import submitted
from buquet.store.interface import FenceExpired

DEFAULT_PRIORITY = 5

CONCURRENCY = 64
"""How many submissions are in flight at once, by default: as many as there are connections."""

MOST_CONCURRENCY = 1024

WINDOW = 2
"""This many times `concurrency` items may be taken and their results not yet given: so one that is slow
does not hold up the others, and a caller who is slow holds up all."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be submitted: the arguments of `Queue.submit`, which checks them."""

    task_type: str
    input: Any
    timeout_seconds: float = 300
    max_retries: int = 3
    retry_policy: RetryPolicy | None = None
    schedule_at: datetime | None = None
    _: KW_ONLY
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of one item of `Queue.submit_many`: either `task` or `error` is set."""

    new: NewTask
    """The item itself."""
    task: Task | None = None
    error: Exception | None = None

    def result(self) -> Task:
        """Return the task, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.task is not None  # noqa: S101 - one of the two is set
        return self.task


Items = Iterable[NewTask] | AsyncIterable[NewTask]


ToJson = Callable[[Any, str], bytes]
"""Writes a value as JSON, or says what is wrong with it: `Queue.to_json`."""


async def submit(ledger: Ledger, new: NewTask, to_json: ToJson) -> Task:
    """Submit a task; see `Queue.submit`."""
    if not isinstance(new, NewTask):
        raise InvalidInputType(f"a task to submit must be a NewTask, not {type(new).__name__}")
    _check(new)
    input_json = to_json(new.input, "input")
    minted_at = ledger.clock.monotonic()
    record = _record_of(new, input_json, ledger)
    try:
        await ledger.submit(record, minted_at=minted_at)
    except OutcomeUnknown as error:
        error.task_id = record.id
        raise
    except FenceExpired as expired:
        raise Unavailable(
            f"the process stood still before the task could be sent ({expired}); nothing was stored: "
            "submit it again"
        ) from expired
    return task_of(record)


def _check(new: NewTask) -> None:
    check_task_type(new.task_type)
    check_timeout_seconds(new.timeout_seconds)
    check_max_retries(new.max_retries)
    check_integer("priority", new.priority, least=0, most=9)
    policy = new.retry_policy
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise InvalidInputType(f"retry_policy must be a RetryPolicy, not {type(policy).__name__}")


def _record_of(new: NewTask, input_json: bytes, ledger: Ledger) -> Record:
    now_ms = ledger.store.time.lower_ms()
    due_ms = now_ms if new.schedule_at is None else max(now_ms, _due_ms(new.schedule_at))
    return submitted(
        task_id=ident.mint(due_ms, new.priority, ledger.clock.bits(58)),
        task_type=new.task_type,
        input_json=input_json,
        priority=new.priority,
        created_ms=now_ms,
        due_ms=due_ms,
        timeout_seconds=new.timeout_seconds,
        max_retries=new.max_retries,
        retry_policy=new.retry_policy or RetryPolicy(),
        nonce=ledger.mint_nonce(),
    )


def _due_ms(schedule_at: datetime) -> int:
    if not isinstance(schedule_at, datetime):
        raise InvalidInputType(f"schedule_at must be a datetime, not {type(schedule_at).__name__}")
    try:
        since_epoch = schedule_at.astimezone(UTC) - EPOCH
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"schedule_at: {schedule_at} is outside the years 1 to 9999 in UTC") from error
    return -(-since_epoch // timedelta(milliseconds=1))  # rounded up: never before the time asked for


def submit_many(
    submit_one: Callable[[NewTask], Awaitable[Task]], tasks: Items, concurrency: int
) -> AsyncGenerator[Submitted, None]:
    """Submit any number of tasks; see `Queue.submit_many`."""
    check_integer("concurrency", concurrency, least=1, most=MOST_CONCURRENCY)
    if not isinstance(tasks, Iterable | AsyncIterable):
        raise InvalidInputType(
            f"tasks must be an iterable or an async iterable of NewTask, not {type(tasks).__name__}"
        )
    return _Stream(submit_one, concurrency).results(tasks)


class _Stream:
    """One `submit_many`: one coroutine takes the items, and each goes out in one of its own."""

    def __init__(self, submit_one: Callable[[NewTask], Awaitable[Task]], concurrency: int) -> None:
        self._submit_one = submit_one
        self._concurrency = concurrency
        self._in_flight = 0
        self._is_away = False
        """Whether the store gave no answer to what was tried last."""
        self._taken: deque[asyncio.Task[Submitted]] = deque()
        """The items whose results were not yet given, in order."""
        self._has_more = asyncio.Event()
        self._has_room = asyncio.Event()

    async def results(self, tasks: Items) -> AsyncGenerator[Submitted, None]:
        """Take the items, and give their results in order."""
        taking = asyncio.create_task(self._take(tasks))
        taking.add_done_callback(lambda _: self._has_more.set())
        try:
            while await self._is_one_left(taking):
                result = await self._taken[0]
                self._taken.popleft()
                self._has_room.set()
                yield result
            taking.result()
        finally:
            unfinished = [taking, *self._taken]
            for one in unfinished:
                one.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def _is_one_left(self, taking: asyncio.Task[None]) -> bool:
        while not self._taken and not taking.done():
            self._has_more.clear()
            await self._has_more.wait()
        return bool(self._taken)

    async def _take(self, tasks: Items) -> None:
        # All in this one coroutine: a generator of the caller's may hold a time-out over a `yield`.
        if isinstance(tasks, AsyncIterable):
            async for new in tasks:
                self._start(new)
                await self._wait_for_room()
        else:
            for new in tasks:
                self._start(new)
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        while not self._may_take():
            self._has_room.clear()
            await self._has_room.wait()

    def _may_take(self) -> bool:
        # While the store is away, one at a time is enough to notice when it is back.
        at_once = 1 if self._is_away else self._concurrency
        return self._in_flight < at_once and len(self._taken) < WINDOW * self._concurrency

    def _start(self, new: NewTask) -> None:
        self._in_flight += 1
        self._taken.append(asyncio.create_task(self._carry(new)))
        self._has_more.set()

    async def _carry(self, new: NewTask) -> Submitted:
        try:
            task = await self._submit_one(new)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this item's and stands beside it
            if isinstance(error, StoreError):
                self._is_away = isinstance(error, Unavailable | OutcomeUnknown)
            return Submitted(new, error=error)
        else:
            self._is_away = False
            return Submitted(new, task)
        finally:
            self._in_flight -= 1
            self._has_room.set()
