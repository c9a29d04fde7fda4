"""Schedules as they stand in the bucket, what a user sees of them, and which occurrences are due.

A `Definition` says what to submit and when; a `Run` says how far that has come. They are two
objects, so that one changes only when a person changes it. An occurrence's task id follows from
the schedule's id and the occurrence: whoever submits it, and however often, it is one task.

Example::

    for occurrence_ms in due(definition, run, now_ms=now_ms, late_ms=120_000):
        record = occurrence(definition, occurrence_ms, now_ms=now_ms, nonce=nonce)
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from buquet._core import ident
from buquet._core.record import Record
from buquet._core.rfc3339 import format_ms, parse_ms
from buquet.errors import InvalidInputType, NewerLayout, PoisonRecord
from buquet.protocol.arguments import (
    check_choice,
    check_max_retries,
    check_task_type,
    check_text,
    check_timeout_seconds,
)
from buquet.protocol.cron import occurrences, parse, zone_of
from buquet.protocol.retry_policy import RetryPolicy
from buquet.protocol.task import EPOCH, check_stored_time
from buquet.protocol.transitions import submitted

T = TypeVar("T")

LAYOUT = 1

CATCH_UPS = ("latest", "all", "none")
OVERLAPS = ("allow", "skip")

MAX_SCHEDULE_ID_CHARS = 200
PRIORITY = 5
DEFAULT_TIMEOUT_SECONDS = 300
DEFAULT_MAX_RETRIES = 3

MOST_AT_ONCE = 1000
"""So many missed occurrences are submitted at a look."""

OLDEST_MS = 7 * 24 * 3600 * 1000
"""No occurrence older than this is submitted: its task may have been removed already (rule 19)."""

LAST_MS = 253_370_764_799_999
"""9998-12-31T23:59:59.999Z: the year 9999 may end earlier in a schedule's zone, and with it the calendar."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands in the bucket; times in RFC 3339.

    Nothing fires for `starts_at` or before: the time when it was created, replaced or enabled. A
    new one has its times and nonce only once it is written.
    """

    v: int = LAYOUT
    rev: int = 0
    nonce: str = ""
    id: str
    task_type: str
    cron: str
    timezone: str = "UTC"
    enabled: bool = True
    catch_up: str = "latest"
    overlap: str = "allow"
    timeout_seconds: float | None = None
    max_retries: int | None = None
    created_at: str = ""
    updated_at: str = ""
    starts_at: str = ""
    input: msgspec.Raw


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How far a schedule has come; times in RFC 3339.

    `schedule_created_at` tells a schedule from an earlier one of the same name. Occurrences up to
    `fired_until` are done with. `starting_task_id` is what is about to be submitted where tasks
    must not overlap: a crash may leave it submitted, but not noted as the last.
    """

    v: int = LAYOUT
    rev: int = 0
    nonce: str = ""
    schedule_id: str
    schedule_created_at: str
    fired_until: str | None = None
    last_run_at: str | None = None
    last_task_id: str | None = None
    starting_task_id: str | None = None


# --- what a user sees ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recurring schedule as it was when it was read. Times are aware datetimes in UTC."""

    id: str
    task_type: str
    input: Any = field(repr=False)
    cron: str
    enabled: bool
    timeout_seconds: float | None
    max_retries: int | None
    created_at: datetime
    updated_at: datetime
    timezone: str
    catch_up: str
    overlap: str


@dataclass(frozen=True, slots=True)
class ScheduleLastRun:
    """When a schedule last submitted a task, and when it will next. Aware datetimes in UTC.

    `next_run_at` is None while the schedule is disabled.
    """

    schedule_id: str
    last_run_at: datetime
    last_task_id: str
    next_run_at: datetime | None


def schedule_of(definition: Definition) -> Schedule:
    """Make the user's view of a schedule."""
    return Schedule(
        id=definition.id,
        task_type=definition.task_type,
        input=msgspec.json.decode(definition.input),
        cron=definition.cron,
        enabled=definition.enabled,
        timeout_seconds=definition.timeout_seconds,
        max_retries=definition.max_retries,
        created_at=_moment(parse_ms(definition.created_at)),
        updated_at=_moment(parse_ms(definition.updated_at)),
        timezone=definition.timezone,
        catch_up=definition.catch_up,
        overlap=definition.overlap,
    )


def last_run_of(definition: Definition, run: Run | None, *, now_ms: int) -> ScheduleLastRun | None:
    """Make the user's view of a schedule's last run; None if there was none."""
    if run is None or run.last_run_at is None or run.last_task_id is None:
        return None
    following = next_after(definition, now_ms) if definition.enabled else None
    return ScheduleLastRun(
        schedule_id=definition.id,
        last_run_at=_moment(parse_ms(run.last_run_at)),
        last_task_id=run.last_task_id,
        next_run_at=None if following is None else _moment(following),
    )


def next_runs(definition: Definition, count: int, *, after_ms: int) -> list[datetime]:
    """Return the next occurrences, as aware datetimes in the schedule's zone."""
    zone = zone_of(definition.timezone)
    coming = occurrences(definition.cron, definition.timezone, after_ms=after_ms)
    return [_moment(at_ms).astimezone(zone) for at_ms in itertools.islice(coming, count)]


def _moment(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)


# --- as they stand in the bucket -------------------------------------------------------------


class _Layout(msgspec.Struct):
    v: int


_layout = msgspec.json.Decoder(_Layout)
_definition = msgspec.json.Decoder(Definition)
_run = msgspec.json.Decoder(Run)


def encode(stored: Definition | Run) -> bytes:
    """Write a schedule or its run as JSON."""
    return msgspec.json.encode(stored)


def decode_definition(body: bytes) -> Definition:
    """Read a schedule.

    Raises
    ------
    NewerLayout
        A later layout version wrote it.
    PoisonRecord
        The body is no schedule, or a field makes no sense.
    """
    definition = _decode(body, _definition)
    try:
        check(definition)
        msgspec.json.decode(definition.input)
        for moment in (definition.created_at, definition.updated_at, definition.starts_at):
            check_stored_time(moment, last_ms=LAST_MS)
    except (ValueError, RecursionError, InvalidInputType) as error:
        raise PoisonRecord(f"not a schedule: {error}") from error
    return definition


def decode_run(body: bytes) -> Run:
    """Read a schedule's run; errors as `decode_definition`."""
    run = _decode(body, _run)
    try:
        for moment in filter(None, (run.fired_until, run.last_run_at)):
            check_stored_time(moment, last_ms=LAST_MS)
        for task_id in filter(None, (run.last_task_id, run.starting_task_id)):
            ident.parse(task_id)
    except ValueError as error:
        raise PoisonRecord(f"not a run of a schedule: {error}") from error
    return run


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        version = _layout.decode(body).v
        if version > LAYOUT:
            raise NewerLayout(f"schedule of layout version {version}, this program knows {LAYOUT}")
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PoisonRecord(f"not a schedule: {error}") from error


def check(definition: Definition) -> None:
    """Raise `InvalidInput` or `InvalidInputType` where a field of a schedule makes no sense."""
    check_schedule_id(definition.id)
    check_task_type(definition.task_type)
    parse(definition.cron)
    zone_of(definition.timezone)
    check_choice("catch_up", definition.catch_up, CATCH_UPS)
    check_choice("overlap", definition.overlap, OVERLAPS)
    if definition.timeout_seconds is not None:
        check_timeout_seconds(definition.timeout_seconds)
    if definition.max_retries is not None:
        check_max_retries(definition.max_retries)


def check_schedule_id(schedule_id: str) -> None:
    """Raise unless an id is 1 to 200 printable characters."""
    check_text("the id of a schedule", schedule_id, most=MAX_SCHEDULE_ID_CHARS)


# --- what is due ---------------------------------------------------------------------------


def next_after(definition: Definition, now_ms: int) -> int | None:
    """Return the first occurrence after a time, or None; both in Unix ms."""
    return next(occurrences(definition.cron, definition.timezone, after_ms=now_ms), None)


def due(definition: Definition, run: Run | None, *, now_ms: int, late_ms: int) -> list[int]:
    """Return the occurrences to submit now, in order, Unix ms.

    Parameters
    ----------
    definition, run:
        The schedule, and how far it has come.
    now_ms:
        The store's time, Unix ms.
    late_ms:
        An occurrence that is older than this was missed.
    """
    if not definition.enabled:
        return []
    after_ms = max(parse_ms(definition.starts_at), now_ms - OLDEST_MS)
    if run is not None and run.fired_until is not None:
        after_ms = max(after_ms, parse_ms(run.fired_until))
    coming = occurrences(definition.cron, definition.timezone, after_ms=after_ms)
    passed = itertools.takewhile(lambda at_ms: at_ms <= now_ms, coming)
    if definition.catch_up == "all" and definition.overlap == "allow":
        return list(itertools.islice(passed, MOST_AT_ONCE))
    latest = list(passed)[-1:]
    if definition.catch_up == "none":
        return [at_ms for at_ms in latest if now_ms - at_ms <= late_ms]
    return latest


def occurrence_id(schedule_id: str, occurrence_ms: int) -> str:
    """Return the id of an occurrence's task: always the same one."""
    digest = hashlib.sha256(f"{format_ms(occurrence_ms)} {schedule_id}".encode()).digest()
    return ident.derive(occurrence_ms, PRIORITY, digest)


def occurrence(definition: Definition, occurrence_ms: int, *, now_ms: int, nonce: str) -> Record:
    """Return the pending record of an occurrence's task; times in Unix ms."""
    return submitted(
        task_id=occurrence_id(definition.id, occurrence_ms),
        task_type=definition.task_type,
        input_json=bytes(definition.input),
        priority=PRIORITY,
        created_ms=now_ms,
        due_ms=occurrence_ms,
        timeout_seconds=timeout_seconds_of(definition),
        max_retries=max_retries_of(definition),
        retry_policy=RetryPolicy(),
        nonce=nonce,
    )


def timeout_seconds_of(definition: Definition) -> float:
    """Return how long an attempt of its tasks may run, seconds."""
    return DEFAULT_TIMEOUT_SECONDS if definition.timeout_seconds is None else definition.timeout_seconds


def max_retries_of(definition: Definition) -> int:
    """Return how many attempts of its tasks may follow the first."""
    return DEFAULT_MAX_RETRIES if definition.max_retries is None else definition.max_retries


# --- what becomes of a run -------------------------------------------------------------------


def run_of(definition: Definition, run: Run | None) -> Run | None:
    """Return the run if it is this schedule's, not that of a deleted one of the same name."""
    return run if run is not None and run.schedule_created_at == definition.created_at else None


def starting(definition: Definition, run: Run | None, task_id: str) -> Run:
    """Note a task that is about to be submitted."""
    return msgspec.structs.replace(_or_new(definition, run), starting_task_id=task_id)


def fired(definition: Definition, run: Run | None, occurrence_ms: int, *, at_ms: int) -> Run | None:
    """Note that an occurrence was submitted at a time; None if it, or a later one, is done with already."""
    task_id = occurrence_id(definition.id, occurrence_ms)
    # One that was announced was submitted, even if somebody else has left it out meanwhile.
    was_announced = run is not None and run.starting_task_id == task_id
    if _is_done(run, occurrence_ms + 1 if was_announced else occurrence_ms):
        return None
    return msgspec.structs.replace(
        _or_new(definition, run),
        fired_until=format_ms(occurrence_ms),
        last_run_at=format_ms(at_ms),
        last_task_id=task_id,
        starting_task_id=None,
    )


def skipped(definition: Definition, run: Run | None, occurrence_ms: int, *, busy_task_id: str) -> Run | None:
    """Note that an occurrence was left out for a task that goes on; None if it is done with already."""
    if _is_done(run, occurrence_ms):
        return None
    after = msgspec.structs.replace(_or_new(definition, run), fired_until=format_ms(occurrence_ms))
    if busy_task_id != after.starting_task_id:
        return after
    return msgspec.structs.replace(
        after,
        last_run_at=format_ms(ident.due_ms(busy_task_id)),
        last_task_id=busy_task_id,
        starting_task_id=None,
    )


def triggered(definition: Definition, run: Run | None, task_id: str, *, at_ms: int) -> Run:
    """Note a task that was submitted out of turn."""
    return msgspec.structs.replace(
        _or_new(definition, run), last_run_at=format_ms(at_ms), last_task_id=task_id
    )


def _is_done(run: Run | None, occurrence_ms: int) -> bool:
    return run is not None and run.fired_until is not None and parse_ms(run.fired_until) >= occurrence_ms


def _or_new(definition: Definition, run: Run | None) -> Run:
    if run is not None:
        return run
    return Run(schedule_id=definition.id, schedule_created_at=definition.created_at)
