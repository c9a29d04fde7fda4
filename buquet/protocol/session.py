"""A process's session: its heartbeat and the journal of its leases, and what others read in it.

Rules 11 to 13 and 17 of docs/protocol.md. Pure: `worker.heartbeat` writes sessions, `monitor`
reads them.

Example::

    session = Session(..., journal=[Entry(task_id, lease_id, lease_expires_at)])
    tombstone = buried(session, nonce=nonce)
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from buquet._core import ident
from buquet.errors import NewerLayout, PoisonRecord
from buquet.protocol.keys import encoded_name
from buquet.protocol.task import check_stored_time

LAYOUT = 1

LIVE = "live"
TOMBSTONE = "tombstone"

MONITOR = "m"
WORKER = "w"


class Entry(msgspec.Struct, frozen=True):
    """A lease in flight; `lease_expires_at` in RFC 3339."""

    task_id: str
    lease_id: str
    lease_expires_at: str


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a process, as it stands in the bucket.

    `lifetime_s` is how long it lives without a heartbeat. `state` is "live" or "tombstone"; a
    tombstone keeps the journal, for whoever recovers its tasks.
    """

    v: int = LAYOUT
    rev: int = 0
    nonce: str
    state: str = LIVE
    worker_id: str
    incarnation: str
    started_at: str
    beat_at: str
    lifetime_s: float
    host: str = ""
    pid: int = 0
    shards: int = 0
    task_types: list[str] = []
    counters: dict[str, int] = {}
    journal: list[Entry] = []


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What a session's key tells: role, encoded worker id, incarnation."""

    role: str
    name: str
    incarnation: str


class _Layout(msgspec.Struct):
    v: int


_decoder = msgspec.json.Decoder(Session)
_layout = msgspec.json.Decoder(_Layout)


def encode(session: Session) -> bytes:
    """Write a session as JSON."""
    return msgspec.json.encode(session)


def decode(body: bytes) -> Session:
    """Read a session.

    Raises
    ------
    NewerLayout
        A later layout version wrote it.
    PoisonRecord
        The body is no session.
    """
    try:
        version = _layout.decode(body).v
        if version > LAYOUT:
            raise NewerLayout(f"session of layout version {version}, this program knows {LAYOUT}")
        session = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PoisonRecord(f"not a session: {error}") from error
    if session.state not in {LIVE, TOMBSTONE}:
        raise PoisonRecord(f"not a session: state {session.state!r}")
    if session.lifetime_s <= 0:
        raise PoisonRecord(f"not a session: lifetime_s {session.lifetime_s}")
    try:
        for entry in session.journal:
            ident.parse(entry.task_id)
            check_stored_time(entry.lease_expires_at)
    except ValueError as error:
        raise PoisonRecord(f"not a session: its journal: {error}") from error
    return session


def buried(session: Session, *, nonce: str) -> Session:
    """Return the session as a tombstone, its journal kept: the zombie's next heartbeat fails."""
    return msgspec.structs.replace(session, rev=session.rev + 1, nonce=nonce, state=TOMBSTONE)


def mint_incarnation(role: str, token: str) -> str:
    """Name one run of a process. It begins with its role, so that its key follows from a record."""
    return f"{role}{token}"


def session_key(prefix: str, worker_id: str, incarnation: str) -> str:
    """The key of a session, from what a running record says of its owner."""
    return f"{prefix}workers/{incarnation[:1]}.{encoded_name(worker_id)}.{incarnation[1:]}.json"


def parse_session_key(prefix: str, key: str) -> SessionKey:
    """Read a session's key.

    Raises
    ------
    PoisonRecord
        The key is no session's.
    """
    parts = key.removeprefix(f"{prefix}workers/").removesuffix(".json").split(".")
    if len(parts) != 3 or parts[0] not in {MONITOR, WORKER}:
        raise PoisonRecord(f"{key!r} is not a session")
    role, name, token = parts
    return SessionKey(role, name, mint_incarnation(role, token))
