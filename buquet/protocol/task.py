"""What a user sees of a task: `Task` and `TaskStatus`, made from a record.

Example::

    task = await queue.get(task_id)
    now = await queue.now()
    if task is not None and task.is_available_at(now):
        ...
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from buquet._core.record import LEASE_GRACE_MS, LogEntry, Record
from buquet._core.rfc3339 import parse_ms
from buquet.errors import PoisonRecord
from buquet.protocol.retry_policy import RetryPolicy

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

LAST_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last time that can be written."""


class TaskStatus(enum.StrEnum):
    """Where a task is in its life. A string: `TaskStatus.Pending == "pending"`."""

    Pending = "pending"
    Running = "running"
    Completed = "completed"
    Failed = "failed"
    Archived = "archived"

    @property
    def is_terminal(self) -> bool:
        """Whether no worker will touch the task again."""
        return self in TERMINAL


TERMINAL = frozenset({TaskStatus.Completed, TaskStatus.Failed, TaskStatus.Archived})


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it was when it was read. Times are aware datetimes in UTC."""

    id: str
    task_type: str
    status: TaskStatus
    input: Any = field(repr=False)
    output: Any = field(repr=False)
    priority: int
    created_at: datetime
    available_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    timeout_seconds: float
    max_retries: int
    retry_policy: RetryPolicy
    retry_count: int
    attempt: int
    worker_id: str | None
    lease_expires_at: datetime | None
    last_error: str | None
    requeue_of: str | None
    requeued_as: str | None

    def is_available_at(self, now: datetime | str) -> bool:
        """Whether a worker may claim the task at `now` (`await queue.now()`, or an aware datetime)."""
        return self.status is TaskStatus.Pending and self.available_at <= _moment(now)

    def is_lease_expired_at(self, now: datetime | str) -> bool:
        """Whether the task is running under a lease that has ended at `now`."""
        return (
            self.status is TaskStatus.Running
            and self.lease_expires_at is not None
            and self.lease_expires_at <= _moment(now)
        )

    def age_at(self, now: datetime | str) -> timedelta:
        """How long ago the task was submitted, seen from `now`."""
        return _moment(now) - self.created_at


def input_of(record: Record) -> Any:
    """Read a record's input.

    Raises
    ------
    PoisonRecord
        It cannot be read.
    """
    try:
        return msgspec.json.decode(record.input)
    except (ValueError, RecursionError) as error:
        raise PoisonRecord(f"record of task {record.id}: {error}") from error


def task_of(record: Record) -> Task:
    """Make the user's view of a record.

    Raises
    ------
    PoisonRecord
        A field cannot be read.
    """
    try:
        return Task(
            id=record.id,
            task_type=record.task_type,
            status=TaskStatus(record.status),
            input=input_of(record),
            output=msgspec.json.decode(record.output),
            priority=record.priority,
            created_at=_read_time(record.created_at),
            available_at=_read_time(record.available_at),
            updated_at=_read_time(record.updated_at),
            completed_at=_read_optional(record.completed_at),
            timeout_seconds=record.timeout_seconds,
            max_retries=record.max_retries,
            retry_policy=RetryPolicy.from_fields(record.retry_policy),
            retry_count=record.retry_count,
            attempt=record.attempt,
            worker_id=record.worker_id,
            lease_expires_at=_read_optional(record.lease_expires_at),
            last_error=record.last_error,
            requeue_of=record.requeue_of,
            requeued_as=record.requeued_as,
        )
    except PoisonRecord:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise PoisonRecord(f"record of task {record.id}: {error}") from error


def history_of(record: Record) -> list[Task]:
    """Rebuild one snapshot a transition from the record's log, oldest first.

    The last one is the current state. Where the log was shortened the snapshots in between
    are missing.

    Raises
    ------
    PoisonRecord
        A field cannot be read.
    """
    latest = task_of(record)
    snapshots: list[Task] = []
    last_error: str | None = None
    try:
        for entry in record.log:
            last_error = entry.error or last_error
            snapshots.append(_snapshot(latest, entry, last_error))
    except (ValueError, OverflowError) as error:
        raise PoisonRecord(f"record of task {record.id}: log: {error}") from error
    return [*snapshots[:-1], latest]


def _snapshot(latest: Task, entry: LogEntry, last_error: str | None) -> Task:
    at = _read_time(entry.at)
    status = TaskStatus(entry.status)
    running = status is TaskStatus.Running
    return replace(
        latest,
        status=status,
        output=latest.output if status is TaskStatus.Completed else None,
        available_at=latest.available_at if entry.available_at is None else _read_time(entry.available_at),
        updated_at=at,
        completed_at=at if status.is_terminal else None,
        retry_count=entry.retry_count,
        attempt=entry.attempt,
        worker_id=entry.worker_id if running else None,
        lease_expires_at=(
            at + timedelta(seconds=latest.timeout_seconds, milliseconds=LEASE_GRACE_MS) if running else None
        ),
        last_error=last_error,
        requeued_as=latest.requeued_as if status is TaskStatus.Archived else None,
    )


def check_stored_time(text: str, *, last_ms: int = LAST_MS) -> None:
    """Raise ValueError unless a stored time is one from 1970 to `last_ms`, as every marker's is."""
    if not 0 <= parse_ms(text) <= last_ms:
        raise ValueError(f"{text} is a time that no program of this queue writes")


def _read_time(text: str) -> datetime:
    return EPOCH + parse_ms(text) * MILLISECOND


def _read_optional(text: str | None) -> datetime | None:
    return None if text is None else _read_time(text)


def _moment(now: datetime | str) -> datetime:
    if isinstance(now, str):
        return _read_time(now)
    if now.tzinfo is None:
        raise ValueError("now must be an aware datetime; use `await queue.now()`")
    return now
