"""The queue as an application sees it: submit tasks, read them, wait for them.

Example::

    queue = await connect(endpoint="http://localhost:8333", bucket="tasks")
    task = await queue.submit("send_email", {"to": "user@example.com"})
    done = await queue.wait(task.id, timeout_s=60)
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec

from buquet import deadletters, submissions
from buquet._core.value import plain
from buquet.audit import Report, verify
from buquet.errors import InvalidInput, InvalidInputType, NewerLayout, PoisonRecord
from buquet.ledger import Ledger
from buquet.listing import readable, shard_pages
from buquet.protocol import schedule as scheduling
from buquet.protocol.arguments import check_integer, check_task_id
from buquet.protocol.keys import Keys
from buquet.protocol.retry_policy import RetryPolicy
from buquet.protocol.schedule import Definition, Schedule, ScheduleLastRun, schedule_of
from buquet.protocol.task import Task, TaskStatus, history_of, task_of
from buquet.schedules import Schedules
from buquet.store.retry import Retrying
from buquet.submissions import CONCURRENCY, DEFAULT_PRIORITY, NewTask, Submitted

MAX_PAYLOAD_BYTES = 1 << 20
STALE_CLOCK_MS = 2_000
WAIT_FIRST_S = 0.05
WAIT_LONGEST_S = 2.0
READS_AT_ONCE = 32

Tasks = list[Task]
Ids = list[str]
ScheduleList = list[Schedule]
Moments = list[datetime]


class Queue:
    """A task queue in one bucket. Made by `connect()`.

    Parameters
    ----------
    store:
        The bucket, wrapped in the retry layer.
    keys:
        The queue's layout.
    max_payload_bytes:
        The largest input, and the largest output, in bytes of JSON.
    open_store:
        Opens a second client of the same bucket, for a heartbeat in a thread of its own;
        without it the heartbeat runs beside the rest.
    """

    def __init__(
        self,
        store: Retrying,
        keys: Keys,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        open_store: Callable[[], Retrying] | None = None,
    ) -> None:
        self.store = store
        self.keys = keys
        self.clock = store.time.clock
        self.ledger = Ledger(store, keys)
        self.schedules = Schedules(self.ledger)
        self.max_payload_bytes = max_payload_bytes
        self.open_store = open_store

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the connections. Safe to call twice, and to leave out."""
        await self.store.close()

    # --- submit ----------------------------------------------------------------------------

    async def submit(
        self,
        task_type: str,
        input: Any,  # noqa: A002 - the published name
        timeout_seconds: float = 300,
        max_retries: int = 3,
        retry_policy: RetryPolicy | None = None,
        schedule_at: datetime | None = None,
        *,
        priority: int = DEFAULT_PRIORITY,
    ) -> Task:
        """Submit a task; when this returns, the task is durable. One request.

        Parameters
        ----------
        task_type:
            Which handler runs it: 1 to 200 characters.
        input:
            What the handler is given: any JSON value, by custom a dict. datetime, date, UUID,
            Decimal, enums, dataclasses and tuples are written as JSON (docs/tasks.md).
        timeout_seconds:
            How long an attempt may run, above 0 and at most 30 days.
        max_retries:
            How many attempts may follow the first one.
        retry_policy:
            How long a failed task waits; `RetryPolicy()` if left out.
        schedule_at:
            The earliest time to run; naive datetimes are local time. Now if left out or past.
        priority:
            0 (most urgent) to 9.

        Returns
        -------
        Task
            The task, pending.

        Raises
        ------
        InvalidInput, InvalidInputType
            An argument cannot be stored; they are a ValueError and a TypeError.
        OutcomeUnknown
            No reply told whether the task was stored; its `task_id` can be asked for with `get`.
        Unavailable
            The store could not be reached; nothing was stored.
        """
        return await self._submit(
            NewTask(
                task_type,
                input,
                timeout_seconds,
                max_retries,
                retry_policy,
                schedule_at,
                priority=priority,
            )
        )

    async def _submit(self, new: NewTask) -> Task:
        return await submissions.submit(self.ledger, new, self.to_json)

    def submit_many(
        self, tasks: Iterable[NewTask] | AsyncIterable[NewTask], *, concurrency: int = CONCURRENCY
    ) -> AsyncGenerator[Submitted, None]:
        """Submit any number of tasks; one that fails does not stop the others. One request each.

        Items are taken as the results are asked for: at most `concurrency` are in flight, and at
        most twice as many were taken whose results were not yet given. What an iterable that is not
        asynchronous does between two items blocks the event loop.

        While the store is away, items go out one at a time, each retried for up to a minute as by
        `submit`: so an outage costs the `concurrency` items in flight and a few more a minute, not
        all that follow.

        If the loop over the results is left early (`break`, an error, a cancellation), no more items
        are taken, and what is in flight is cancelled. Of those items whose results were not given,
        the last 2 x `concurrency` at most, each may be stored or not. `contextlib.aclosing` waits
        until that has ended.

        Parameters
        ----------
        tasks:
            The new tasks.
        concurrency:
            How many submissions may be in flight, 1 to 1,024; more than 64 need more connections
            than there are.

        Yields
        ------
        Submitted
            For each item, in order: the item, with its task or with what `submit` raised for it.
            What the iterable itself raises comes after the results of all items before that.

        Raises
        ------
        InvalidInput, InvalidInputType
            `concurrency` makes no sense, or `tasks` is no iterable.
        """
        return submissions.submit_many(self._submit, tasks, concurrency)

    def to_json(self, value: Any, where: str) -> bytes:
        """Write a user's value as JSON.

        Parameters
        ----------
        value:
            The value.
        where:
            What to call it in an error: the path of a refused field begins with it.

        Raises
        ------
        InvalidInput, InvalidInputType
            A field cannot be stored, or the whole is larger than `max_payload_bytes`.
        """
        try:
            body = msgspec.json.encode(plain(value, where=where))
        except TypeError as error:
            raise InvalidInputType(str(error)) from error
        except ValueError as error:
            raise InvalidInput(str(error)) from error
        if len(body) > self.max_payload_bytes:
            raise InvalidInput(
                f"{where} is {len(body):,} bytes of JSON, the limit is {self.max_payload_bytes:,}: store "
                "large data as an object of its own and pass its key, or raise BUQUET_MAX_PAYLOAD_BYTES"
            )
        return body

    # --- read ------------------------------------------------------------------------------

    async def get(self, task_id: str) -> Task | None:
        """Read a task; None if there is none with this id.

        Raises
        ------
        ValueError
            The id is malformed.
        PoisonRecord, NewerLayout
            Its record cannot be read.
        """
        check_task_id(task_id)
        record = await self.ledger.find(task_id)
        return None if record is None else task_of(record)

    async def get_history(self, task_id: str) -> Tasks:
        """Return one snapshot of the task for each transition, oldest first; [] if unknown.

        The last one is the current state. A long history keeps its first and its last 50.

        Raises
        ------
        ValueError
            The id is malformed.
        """
        check_task_id(task_id)
        record = await self.ledger.find(task_id)
        return [] if record is None else history_of(record)

    async def list(
        self,
        shard: str,
        status: TaskStatus | str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Tasks:
        """List the tasks of a shard, ordered by id, unclaimed ones included.

        Every task is read (one GET each, two for an unclaimed one), also those that `status`
        filters out: a rare status in a large shard costs as many reads as the shard has tasks.

        Parameters
        ----------
        shard:
            The shard, for example "a".
        status:
            Only tasks of this status; applied before `limit`.
        limit:
            At most this many tasks.
        after:
            Only tasks whose id sorts after this one: pass the last id of the page before.

        Raises
        ------
        ValueError
            The shard, the status or an id is malformed.
        """
        self._check_shard(shard)
        check_integer("limit", limit, least=0, most=1_000_000)
        wanted = None if status is None else TaskStatus(status)
        if after is not None:
            check_task_id(after)
        found: Tasks = []
        async for page in shard_pages(self.store, self.keys, shard, after=after or ""):
            for start in range(0, len(page), READS_AT_ONCE):
                if len(found) >= limit:
                    return found[:limit]
                batch = page[start : start + READS_AT_ONCE]
                tasks = await asyncio.gather(*map(self._read_for_list, batch))
                found.extend(task for task in tasks if task is not None and wanted in (None, task.status))
        return found[:limit]

    async def _read_for_list(self, task_id: str) -> Task | None:
        try:
            record = await self.ledger.find(task_id)
            return None if record is None else task_of(record)
        except (PoisonRecord, NewerLayout):
            return None

    async def list_ready(self, shard: str, limit: int = 100) -> Ids:
        """Return ids of due tasks of a shard by one LIST, most urgent first.

        A task that was claimed within the last second may still be among them.

        Raises
        ------
        ValueError
            The shard is malformed.
        """
        self._check_shard(shard)
        check_integer("limit", limit, least=0, most=1_000_000)
        page = await self.store.list(f"{self.keys.ready}{shard}/")
        now_ms = self.store.time.upper_ms()
        due = dict.fromkeys(
            marker.task_id for marker in readable(page, self.keys.parse_marker) if marker.due_ms <= now_ms
        )
        return [*due][:limit]

    async def now(self) -> str:
        """Return the store's time as RFC 3339 text; a request only if the estimate has grown stale."""
        if not self.store.time.synced or self.store.time.error_ms > STALE_CLOCK_MS:
            await self.store.head(self.keys.manifest)
        return self.store.time.now()

    async def wait(self, task_id: str, timeout_s: float | None = None) -> Task:
        """Wait until a task is terminal, reading it every 50 ms at first, later every 2 s.

        Parameters
        ----------
        task_id:
            The task.
        timeout_s:
            How long to wait, in seconds; for ever if None.

        Raises
        ------
        TimeoutError
            The task was not terminal in time.
        LookupError
            There is no such task.
        ValueError
            The id is malformed.
        """
        async with asyncio.timeout(timeout_s):
            pause_s = WAIT_FIRST_S
            while True:
                task = await self.get(task_id)
                if task is None:
                    raise LookupError(f"there is no task {task_id}")
                if task.status.is_terminal:
                    return task
                await self.clock.sleep(pause_s)
                pause_s = min(pause_s * 1.5, WAIT_LONGEST_S)

    # --- what has ended --------------------------------------------------------------------

    async def list_failed(self, limit: int = 100, task_type: str | None = None) -> Tasks:
        """List failed tasks, by shard and then by id. One GET each, and one LIST a thousand.

        Parameters
        ----------
        limit:
            At most this many.
        task_type:
            Only tasks of this type; applied before `limit`.
        """
        check_integer("limit", limit, least=0, most=1_000_000)
        found: Tasks = []
        async for record in deadletters.failed(self.ledger):
            if len(found) >= limit:
                break
            if task_type in (None, record.task_type):
                found.append(task_of(record))
        return found

    async def requeue(self, task_id: str) -> Task:
        """Do an ended task's work again as a new task; the old one is archived.

        The new task's id follows from the old one's, so calling twice makes one task.

        Returns
        -------
        Task
            The new task; `requeue_of` names the old one.

        Raises
        ------
        LookupError
            There is no such task, or it was never claimed.
        ValueError
            The id is malformed, the task has not ended, or it is archived already.
        """
        check_task_id(task_id)
        return task_of(await deadletters.requeue(self.ledger, task_id))

    async def requeue_many(self, task_ids: Iterable[str]) -> AsyncIterator[tuple[str, Task | Exception]]:
        """Requeue any number of tasks, 32 at a time; one that cannot be does not stop the others.

        Parameters
        ----------
        task_ids:
            The ended tasks.

        Yields
        ------
        tuple
            Each id in the order given, with the new task, or with what `requeue` raised for it.
        """
        rest = iter(task_ids)
        while batch := [*itertools.islice(rest, READS_AT_ONCE)]:
            outcomes = await asyncio.gather(*map(self.requeue, batch), return_exceptions=True)
            for task_id, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                    raise outcome
                yield task_id, outcome

    async def archive(self, task_id: str) -> Task:
        """Archive an ended task: it keeps its outcome, and is removed for good when it is old.

        Raises
        ------
        LookupError
            There is no such task, or it was never claimed.
        ValueError
            The id is malformed, or the task has not ended.
        """
        check_task_id(task_id)
        while True:
            loaded = await self.ledger.load(task_id)
            if loaded is None:
                raise LookupError(f"there is no ended task {task_id}")
            status = TaskStatus(loaded.record.status)
            if not status.is_terminal:
                raise InvalidInput(f"task {task_id} is {status}: only a task that has ended can be archived")
            if status is TaskStatus.Archived:
                return task_of(loaded.record)
            await deadletters.archive(self.ledger, loaded)

    async def verify(self, *, repair: bool = False) -> Report:
        """Walk the bucket and report what breaks the protocol's invariant; mend it on request.

        It may run beside live workers. Costs a GET a task and a LIST a thousand objects.
        """
        return await verify(self.ledger, repair=repair)

    # --- recurring schedules ---------------------------------------------------------------

    async def create_schedule(
        self,
        id: str,  # noqa: A002 - the published name
        task_type: str,
        input: Any,  # noqa: A002 - the published name
        cron: str,
        timeout_seconds: float | None = None,
        max_retries: int | None = None,
        *,
        timezone: str = "UTC",
        catch_up: str = "latest",
        overlap: str = "allow",
        replace: bool = False,
    ) -> Schedule:
        """Create a recurring schedule; it does not fire for the past. Some `Scheduler` must run.

        Parameters
        ----------
        id:
            A name for people: 1 to 200 printable characters.
        task_type, input, timeout_seconds, max_retries:
            What to submit, as for `submit`; its defaults where None.
        cron:
            Five fields as crontab(5) has them, or `@hourly` to `@yearly` (docs/schedules.md).
        timezone:
            The IANA name of the zone that the fields are meant in.
        catch_up:
            What to submit of occurrences that were missed: "latest", "all" or "none" of them.
        overlap:
            "allow", or "skip" an occurrence while the task of the last one has not ended.
        replace:
            Replace a schedule of this id, if there is one; it keeps its `created_at`.

        Raises
        ------
        InvalidInput, InvalidInputType
            An argument makes no sense, or there is a schedule of this id already.
        """
        definition = Definition(
            id=id,
            task_type=task_type,
            input=msgspec.Raw(self.to_json(input, "input")),
            cron=cron,
            timezone=timezone,
            catch_up=catch_up,
            overlap=overlap,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
        )
        return schedule_of(await self.schedules.create(definition, replace=replace))

    async def get_schedule(self, id: str) -> Schedule | None:  # noqa: A002 - the published name
        """Read a schedule; None if there is none of this id.

        Raises
        ------
        PoisonRecord, NewerLayout
            It cannot be read.
        """
        loaded = await self.schedules.load(id)
        return None if loaded is None else schedule_of(loaded.definition)

    async def list_schedules(self) -> ScheduleList:
        """Read all schedules, by id; one GET each. Those that cannot be read are left out."""
        return [schedule_of(loaded.definition) for loaded in await self.schedules.load_all()]

    async def delete_schedule(self, id: str) -> None:  # noqa: A002 - the published name
        """Delete a schedule; a missing one is no error. Tasks that it has submitted stay."""
        await self.schedules.delete(id)

    async def enable_schedule(self, id: str) -> None:  # noqa: A002 - the published name
        """Let a schedule fire again, but not for what it missed. `LookupError` if it is missing."""
        await self.schedules.set_enabled(id, enabled=True)

    async def disable_schedule(self, id: str) -> None:  # noqa: A002 - the published name
        """Let a schedule fire no more until it is enabled. `LookupError` if it is missing."""
        await self.schedules.set_enabled(id, enabled=False)

    async def trigger_schedule(self, id: str) -> Task:  # noqa: A002 - the published name
        """Submit a schedule's task now, even if it is disabled or its last task has not ended.

        The next occurrence stays where it is.

        Raises
        ------
        LookupError
            There is no such schedule.
        OutcomeUnknown, Unavailable
            As for `submit`.
        """
        definition = (await self.schedules.require(id)).definition
        task = await self.submit(
            definition.task_type,
            msgspec.json.decode(definition.input),
            scheduling.timeout_seconds_of(definition),
            scheduling.max_retries_of(definition),
        )
        await self.schedules.note_trigger(definition, task.id)
        return task

    async def get_schedule_last_run(self, id: str) -> ScheduleLastRun | None:  # noqa: A002
        """Return when a schedule last ran, and when it will next; None if it is missing or never ran."""
        loaded = await self.schedules.load(id)
        if loaded is None:
            return None
        run = await self.schedules.run(loaded.definition)
        return scheduling.last_run_of(loaded.definition, run, now_ms=self.store.time.now_ms())

    async def next_runs(self, schedule_id: str, count: int) -> Moments:
        """Return the next occurrences of a schedule, enabled or not, as datetimes in its zone.

        Parameters
        ----------
        schedule_id:
            The schedule.
        count:
            How many, 1 to 10,000.

        Raises
        ------
        LookupError
            There is no such schedule.
        """
        check_integer("count", count, least=1, most=10_000)
        definition = (await self.schedules.require(schedule_id)).definition
        return scheduling.next_runs(definition, count, after_ms=self.store.time.now_ms())

    def _check_shard(self, shard: str) -> None:
        if shard not in self.keys.shards():
            raise InvalidInput(
                f"{shard!r} is not a shard: this queue's shards are {self.keys.shard_prefix_len} lower-case "
                "hex digits"
            )
