"""The decisions of the protocol, as pure functions of (record, the store's time, ...).

`judge` says what a worker may do about a marker it has seen, `settled` what becomes of a
record that a handler has finished with, `taken_back` what becomes of one whose worker was
lost. Rule numbers are those of docs/protocol.md.

Example::

    match judge(marker, record, now_ms=store_clock.lower_ms(), handles=types):
        case Claimable(): ...
        case Deletable(): ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import msgspec

from buquet._core import ident
from buquet._core import record as core
from buquet._core.record import Record
from buquet._core.rfc3339 import format_ms, parse_ms
from buquet.errors import NewerLayout, PoisonRecord
from buquet.protocol.keys import LOWEST_PRIORITY, MAX_ATTEMPT, Keys, Marker
from buquet.protocol.retry_policy import RetryPolicy
from buquet.protocol.task import TaskStatus, check_stored_time

LEASE_SLACK_MS = 5_000
"""A lease is void only this long after its end, so that clock errors never make two owners."""

CLOCK_ERROR_MS = 2_000
"""How far two clients may disagree about the store's time."""

MAX_ERROR_CHARS = 2_000

MAX_COUNT = 10**9
"""Far above what a submission may ask for, far below what would not fit a date."""


# --- records -----------------------------------------------------------------------------


def decode(body: bytes, *, task_id: str) -> Record:
    """Read a record that must be about `task_id`.

    Raises
    ------
    PoisonRecord
        The body is no record, or about another task, or a field makes no sense.
    NewerLayout
        A later layout version wrote it: leave it alone.
    """
    try:
        record = core.decode(body)
        moments = [record.available_at, record.updated_at, record.created_at, record.first_due]
        for moment in (*moments, record.completed_at, record.deletion_marked_at, record.lease_expires_at):
            if moment is not None:
                check_stored_time(moment)
        if record.status == TaskStatus.Running:
            core.lease_ends_ms(record)
        if record.status not in _STATUSES:
            raise ValueError(f"{record.status!r} is no status")
        _check_ranges(record)
    except NotImplementedError as error:
        raise NewerLayout(f"task {task_id}: {error}; upgrade this program") from error
    except ValueError as error:
        raise PoisonRecord(f"task {task_id}: {error}") from error
    if record.id != task_id:
        raise PoisonRecord(f"task {task_id}: the record is about {record.id}")
    return record


_STATUSES = frozenset(status.value for status in TaskStatus)

_MOST = {
    "rev": 2**62,
    "priority": LOWEST_PRIORITY,
    "attempt": MAX_ATTEMPT,
    "retry_count": MAX_COUNT,
    "max_retries": MAX_COUNT,
    "timeout_seconds": MAX_COUNT,
}


def _check_ranges(record: Record) -> None:
    for name, most in _MOST.items():
        value = getattr(record, name)
        if not 0 <= value <= most:
            raise ValueError(f"{name} is {value}, which is not between 0 and {most}")


def next_moment_ms(record: Record, now_ms: int) -> int:
    """Return `now_ms`, or when the record last changed or is due, if that is a clock's error later.

    So a task never starts before it was due, nor ends before it started.
    """
    latest_ms = max(parse_ms(record.updated_at), parse_ms(record.available_at))
    return latest_ms if now_ms < latest_ms <= now_ms + CLOCK_ERROR_MS else now_ms


def submitted(
    *,
    task_id: str,
    task_type: str,
    input_json: bytes,
    priority: int,
    created_ms: int,
    due_ms: int,
    timeout_seconds: float,
    max_retries: int,
    retry_policy: RetryPolicy,
    nonce: str,
    requeue_of: str | None = None,
) -> Record:
    """Return the pending record of a new task."""
    created_at, due = format_ms(created_ms), format_ms(due_ms)
    return Record(
        rev=0,
        nonce=nonce,
        id=task_id,
        task_type=task_type,
        status=TaskStatus.Pending.value,
        priority=priority,
        created_at=created_at,
        available_at=due,
        updated_at=created_at,
        timeout_seconds=timeout_seconds,
        max_retries=max_retries,
        retry_policy=retry_policy.to_fields(),
        first_due=due,
        requeue_of=requeue_of,
        log=[core.LogEntry(at=created_at, status=TaskStatus.Pending.value, available_at=due)],
        input=msgspec.Raw(input_json),
    )


# --- a marker that was seen (rules 1, 8, 9, 14) --------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimable:
    """The marker is valid: the task may be claimed."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The marker is valid and cancellation was requested: fail the task."""


@dataclass(frozen=True, slots=True)
class Void:
    """The task runs under a lease that is void: take it back."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do before `until_ms` (the store's time, Unix ms), or ever if that is None."""

    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Deletable:
    """The marker is garbage (rule 14)."""


Judgement = Claimable | Cancelled | Void | Leave | Deletable


def judge(
    marker: Marker, record: Record, *, now_ms: int, handles: Container[str], is_orphan: bool = False
) -> Judgement:
    """Say what may be done about `marker`, given the ledger as read after the marker was seen.

    Parameters
    ----------
    marker:
        The marker.
    record:
        The task's ledger.
    now_ms:
        The lower end of the store's time, Unix ms.
    handles:
        The task types this worker has handlers for.
    is_orphan:
        The lease's owner is known to be gone, so it is void whatever its end.
    """
    if record.status == TaskStatus.Running:
        void_ms = void_at_ms(record)
        if is_orphan or now_ms > void_ms:
            return Void()
        # The owner writes the marker of a retry before it writes the ledger, a moment later.
        return Leave(until_ms=void_ms if marker.attempt < record.attempt else now_ms)
    if record.status != TaskStatus.Pending:
        return Deletable()
    if (marker.due_ms, marker.attempt) != (parse_ms(record.available_at), record.attempt):
        # A marker of a later attempt than the ledger's may be somebody's next write.
        return Deletable() if marker.attempt <= record.attempt else Leave(until_ms=now_ms)
    if record.cancel_requested_at is not None:
        return Cancelled()
    return Claimable() if record.task_type in handles else Leave()


def void_at_ms(record: Record) -> int:
    """When the lease of a running record is void by its end alone, Unix ms."""
    return core.lease_ends_ms(record) + LEASE_SLACK_MS


# --- the end of an attempt (rules 9, 15, 18) -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt came to.

    `nonce` and `at_ms` are fixed once, so that every resend of the write is the same and can
    be recognised. `status` is that which the handler earned: completed, failed (for good), or
    pending (another try). A release is pending with `counts_as_retry` false.
    """

    status: TaskStatus
    nonce: str
    at_ms: int
    output: bytes | None = field(default=None, repr=False)
    error: str | None = None
    traceback: str | None = field(default=None, repr=False)
    counts_as_retry: bool = True
    delay_ms: int = 0


def settled(record: Record, outcome: Outcome) -> Record:
    """Return what becomes of a running record of ours, `available_at` set where it goes on."""
    if outcome.status is not TaskStatus.Pending:
        return core.to_terminal(
            record,
            at_ms=outcome.at_ms,
            status=outcome.status.value,
            nonce=outcome.nonce,
            output=outcome.output,
            error=outcome.error,
            traceback=outcome.traceback,
        )
    due_ms = outcome.at_ms + outcome.delay_ms
    return _back_to_pending(record, outcome, due_ms=due_ms)


def taken_back(record: Record, *, at_ms: int, nonce: str) -> Record:
    """Return what becomes of a running record whose lease is void: pending, or failed."""
    error = f"WorkerLost: worker {record.worker_id} was lost while it ran attempt {record.attempt}"
    outcome = Outcome(TaskStatus.Pending, nonce, at_ms, error=error)
    return _back_to_pending(record, outcome, due_ms=parse_ms(record.updated_at))


def _back_to_pending(record: Record, outcome: Outcome, *, due_ms: int) -> Record:
    spent = outcome.counts_as_retry and record.retry_count >= record.max_retries
    is_cancelled = record.cancel_requested_at is not None
    if spent or is_cancelled or record.attempt >= MAX_ATTEMPT:
        reason = CANCELLED if is_cancelled else f"after {MAX_ATTEMPT} attempts there are no more"
        return core.to_terminal(
            record,
            at_ms=outcome.at_ms,
            status=TaskStatus.Failed.value,
            nonce=outcome.nonce,
            error=reason if outcome.error is None else outcome.error,
            traceback=outcome.traceback,
        )
    return core.to_pending(
        record,
        at_ms=outcome.at_ms,
        available_ms=due_ms,
        nonce=outcome.nonce,
        counts_as_retry=outcome.counts_as_retry,
        error=outcome.error,
        traceback=outcome.traceback,
    )


CANCELLED = "Cancelled: cancellation was requested"


def cancelled(record: Record, *, at_ms: int, nonce: str) -> Record:
    """Return a pending record failed because cancellation was requested."""
    return core.to_terminal(record, at_ms=at_ms, status=TaskStatus.Failed.value, nonce=nonce, error=CANCELLED)


def requeued(record: Record, *, at_ms: int, nonce: str) -> Record:
    """Return the new task that does a terminal one's work again (rule 16).

    Its id follows from the old one, so that two callers, or a crash between, make one task.
    """
    if record.completed_at is None:
        raise PoisonRecord(f"task {record.id}: it has ended, but has no completed_at")
    due_ms = parse_ms(record.completed_at)
    digest = hashlib.sha256(record.id.encode()).digest()
    return submitted(
        task_id=ident.derive(due_ms, record.priority, digest),
        task_type=record.task_type,
        input_json=bytes(record.input),
        priority=record.priority,
        created_ms=at_ms,
        due_ms=due_ms,
        timeout_seconds=record.timeout_seconds,
        max_retries=record.max_retries,
        retry_policy=RetryPolicy.from_fields(record.retry_policy),
        nonce=nonce,
        requeue_of=record.id,
    )


def archived(record: Record, *, at_ms: int, nonce: str, requeued_as: str | None = None) -> Record:
    """Return a terminal record archived; also one that is archived, to add what it was requeued as."""
    return core.to_archived(record, at_ms=at_ms, nonce=nonce, requeued_as=requeued_as)


def retry_delay_ms(record: Record, chance: float) -> int:
    """How long the next attempt waits, by the record's retry policy; `chance` in [0, 1)."""
    return RetryPolicy.from_fields(record.retry_policy).delay_ms(record.retry_count, chance)


def next_marker(keys: Keys, record: Record) -> Marker | None:
    """The marker that a record needs before it may be written: None unless it is pending."""
    return keys.marker_of(record) if record.status == TaskStatus.Pending else None


# --- a completion that was refused (rule 15) -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Won:
    """Our write stands."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The record changed under us, but it still runs under our lease: apply the outcome to it."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Somebody else owns the task now: drop the outcome."""


def judge_refused(record: Record | None, *, lease_id: str, nonce: str) -> Won | Merge | LeaseLost:
    """Say what a refused completion means, given the ledger as read after the refusal."""
    if record is None:
        return LeaseLost()
    if record.nonce == nonce:
        return Won()
    if record.status == TaskStatus.Running and record.lease_id == lease_id:
        return Merge()
    if record.status == TaskStatus.Archived and any(
        entry.lease_id == lease_id and entry.status in {TaskStatus.Completed, TaskStatus.Failed}
        for entry in record.log
    ):
        return Won()
    return LeaseLost()


def holds_lease(lease_id: str) -> Callable[[bytes], bool]:
    """Return a test that tells our claim by its lease id: a cancel flag changes the nonce."""

    def ours(body: bytes) -> bool:
        try:
            return core.decode(body).lease_id == lease_id
        except (ValueError, NotImplementedError):
            return False

    return ours


def bears_nonce(nonce: str) -> Callable[[bytes], bool]:
    """Return a test that tells our write by its nonce."""

    def ours(body: bytes) -> bool:
        try:
            return core.decode(body).nonce == nonce
        except (ValueError, NotImplementedError):
            return False

    return ours


def shortened(text: str) -> str:
    """Return an error's text as a record may hold it: bounded, and valid UTF-8."""
    safe = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return safe if len(safe) <= MAX_ERROR_CHARS else safe[: MAX_ERROR_CHARS - 1] + "…"
