"""A task's record: the JSON object in the bucket, and how a lease changes it.

Every function that changes a record returns a new one with `rev` raised, a fresh `nonce` and
one more entry in `log`; none reads a clock or draws a number. Times are Unix milliseconds as
arguments and RFC 3339 text inside the record. `input` and `output` stay raw JSON: passing a
record on never parses them.

Errors: `ValueError` for a body that is no record, `NotImplementedError` for a newer layout.

Example::

    record = decode(body)
    running = claim(record, at_ms=now, lease_id=lease, nonce=nonce, worker_id="w", incarnation=inc)
    body = encode(running)
"""

from __future__ import annotations

from typing import Any

import msgspec

from .rfc3339 import format_ms, parse_ms

LAYOUT = 1
"""The layout version that this program reads and writes."""

LEASE_GRACE_MS = 10_000
"""A lease ends this long after the task's own time-out, so that a timely outcome still counts."""

LOG_TAIL = 50
"""How many entries a log keeps beside its first one."""

TRACEBACK_BYTES = 2048
TRACEBACKS_KEPT = 5

NULL = msgspec.Raw(b"null")


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One transition of a task. `dropped` counts the entries that stood before this one and are gone."""

    at: str
    status: str
    attempt: int = 0
    retry_count: int = 0
    available_at: str | None = None
    worker_id: str | None = None
    lease_id: str | None = None
    error: str | None = None
    traceback: str | None = None
    dropped: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands in the bucket. The fields are described in docs/protocol.md."""

    v: int = LAYOUT
    rev: int
    nonce: str
    id: str
    task_type: str
    status: str
    priority: int
    created_at: str
    available_at: str
    updated_at: str
    completed_at: str | None = None
    timeout_seconds: float
    max_retries: int
    retry_policy: dict[str, int | float] | None = None
    retry_count: int = 0
    attempt: int = 0
    first_due: str
    worker_id: str | None = None
    incarnation: str | None = None
    lease_id: str | None = None
    lease_expires_at: str | None = None
    cancel_requested_at: str | None = None
    requeue_of: str | None = None
    requeued_as: str | None = None
    deletion_marked_at: str | None = None
    last_error: str | None = None
    output: msgspec.Raw = NULL
    log: list[LogEntry] = []
    input: msgspec.Raw


class _Layout(msgspec.Struct):
    v: int


_decoder = msgspec.json.Decoder(Record)
_layout_decoder = msgspec.json.Decoder(_Layout)


def _as_builtin(value: object) -> object:
    """Return what a value of a derived type is at bottom; `numpy.float64`, say, is a float."""
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_as_builtin)


def decode(body: bytes) -> Record:
    """Read a record.

    Raises
    ------
    NotImplementedError
        The record was written by a newer layout version.
    ValueError
        The body is no record of this layout; the message names the field.
    """
    try:
        record = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_newer(body)
        raise ValueError(str(error)) from error
    if record.v != LAYOUT:
        _refuse_newer(body)
        raise ValueError(f"layout version {record.v} never existed")
    return record


def _refuse_newer(body: bytes) -> None:
    try:
        version = _layout_decoder.decode(body).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if version > LAYOUT:
        raise NotImplementedError(f"layout version {version}, this program knows {LAYOUT}")


def encode(record: Record) -> bytes:
    """Write a record as compact JSON, UTF-8."""
    return _encoder.encode(record)


def lease_ends_ms(record: Record) -> int:
    """When the lease of a running record ends, Unix ms."""
    if record.lease_expires_at is None:
        raise ValueError("a running record has no lease_expires_at")
    return parse_ms(record.lease_expires_at)


def claim(
    record: Record, *, at_ms: int, lease_id: str, nonce: str, worker_id: str, incarnation: str
) -> Record:
    """Return the record running under a new lease: one more attempt, `available_at` kept."""
    return _moved(
        record,
        at_ms,
        nonce,
        "running",
        {"worker_id": worker_id, "lease_id": lease_id},
        attempt=record.attempt + 1,
        worker_id=worker_id,
        incarnation=incarnation,
        lease_id=lease_id,
        lease_expires_at=format_ms(at_ms + int(record.timeout_seconds * 1000) + LEASE_GRACE_MS),
    )


def to_pending(
    record: Record,
    *,
    at_ms: int,
    available_ms: int,
    nonce: str,
    counts_as_retry: bool,
    error: str | None,
    traceback: str | None = None,
) -> Record:
    """Return a running record as pending again: a retry, a take-back or a release."""
    return _moved(
        record,
        at_ms,
        nonce,
        "pending",
        _last_words(record, error, traceback),
        available_at=format_ms(available_ms),
        retry_count=record.retry_count + counts_as_retry,
        last_error=record.last_error if error is None else error,
        **_NO_LEASE,
    )


def to_terminal(
    record: Record,
    *,
    at_ms: int,
    status: str,
    nonce: str,
    output: bytes | None = None,
    error: str | None = None,
    traceback: str | None = None,
) -> Record:
    """Return the record completed or failed: lease and owner cleared."""
    return _moved(
        record,
        at_ms,
        nonce,
        status,
        _last_words(record, error, traceback),
        completed_at=format_ms(at_ms),
        output=NULL if output is None else msgspec.Raw(output),
        last_error=record.last_error if error is None else error,
        **_NO_LEASE,
    )


def to_archived(record: Record, *, at_ms: int, nonce: str, requeued_as: str | None) -> Record:
    """Return a terminal record archived; it keeps its outcome."""
    return _moved(record, at_ms, nonce, "archived", {}, requeued_as=requeued_as)


_NO_LEASE = {"worker_id": None, "incarnation": None, "lease_id": None, "lease_expires_at": None}


def _last_words(record: Record, error: str | None, traceback: str | None) -> dict[str, str | None]:
    """What the log says of the attempt that ends."""
    return {
        "worker_id": record.worker_id,
        "lease_id": record.lease_id,
        "error": error,
        "traceback": _cut(traceback),
    }


def _moved(
    record: Record, at_ms: int, nonce: str, status: str, entry: dict[str, Any], **changes: Any
) -> Record:
    """Make one transition: `changes` to the record, and one more entry in its log."""
    at = format_ms(at_ms)
    logged = LogEntry(
        at=at,
        status=status,
        attempt=changes.get("attempt", record.attempt),
        retry_count=changes.get("retry_count", record.retry_count),
        available_at=changes.get("available_at", record.available_at),
        **entry,
    )
    return msgspec.structs.replace(
        record,
        rev=record.rev + 1,
        nonce=nonce,
        status=status,
        updated_at=at,
        log=_appended(record.log, logged),
        **changes,
    )


def with_deletion_mark(record: Record, *, at_ms: int, nonce: str) -> Record:
    """Return an archived record with the mark whose writer alone may delete it."""
    return msgspec.structs.replace(
        record, rev=record.rev + 1, nonce=nonce, deletion_marked_at=format_ms(at_ms)
    )


def _cut(traceback: str | None) -> str | None:
    if traceback is None:
        return None
    raw = traceback.encode("utf-8", "backslashreplace")
    return raw[-TRACEBACK_BYTES:].decode("utf-8", "ignore")


def _appended(log: list[LogEntry], entry: LogEntry) -> list[LogEntry]:
    """Append, keeping the first entry, the last `LOG_TAIL` and the last few tracebacks."""
    grown = [*log, entry]
    surplus = len(grown) - 1 - LOG_TAIL
    if surplus > 0:
        gone = surplus + sum(old.dropped for old in grown[1 : 2 + surplus])
        eldest = msgspec.structs.replace(grown[1 + surplus], dropped=gone)
        grown = [grown[0], eldest, *grown[2 + surplus :]]
    if entry.traceback is not None:
        traced = [place for place, old in enumerate(grown) if old.traceback is not None]
        for place in traced[:-TRACEBACKS_KEPT]:
            grown[place] = msgspec.structs.replace(grown[place], traceback=None)
    return grown
