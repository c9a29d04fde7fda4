"""The protocol's steps against a store: load, decide, conditional put.

`Ledger` is what queue, worker and monitor share. Each method is one step of docs/protocol.md
and leaves the bucket sound wherever it is interrupted.

Errors: `OutcomeUnknown` where a write stays undecided, `Unavailable` where the store is away.

Example::

    claimed = await ledger.claim(
        marker, has_body=True, look=Look.MARKER, owner=owner, handles={"send_email"}
    )
    if isinstance(claimed, Claim):
        ...
        await ledger.settle(claimed, outcome)
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Container
from dataclasses import dataclass

from buquet._core import ident
from buquet._core.record import Record, claim, encode
from buquet._core.rfc3339 import parse_ms
from buquet.clock import token
from buquet.errors import NewerLayout, PoisonRecord
from buquet.incarnation import Incarnation
from buquet.protocol.keys import Keys, Marker
from buquet.protocol.session import TOMBSTONE, session_key
from buquet.protocol.session import decode as decode_session
from buquet.protocol.task import TaskStatus
from buquet.protocol.transitions import (
    Cancelled,
    Claimable,
    Deletable,
    LeaseLost,
    Leave,
    Outcome,
    Void,
    Won,
    bears_nonce,
    cancelled,
    decode,
    holds_lease,
    judge,
    judge_refused,
    next_marker,
    next_moment_ms,
    settled,
    taken_back,
)
from buquet.store.interface import Always, Blob, IfAbsent, IfMatches, Store, Written

LOOKS_MS = (5_000, 25_000, 42_000)
"""A claim's marker goes about a second after it. Where it stays, its owner may have crashed at once, so
these long after the claim its session is looked for, the last time when it must have been buried. Later
the monitors' sweeps do that."""

POISON_REMEMBERED = 10_000
"""How many unreadable records are known to have been noted, so that they are not noted again."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A task that we hold: the record as it stands, its ETag, and the marker we claimed it by."""

    record: Record
    etag: str
    lease_id: str
    marker: Marker
    owner: Incarnation


@dataclass(frozen=True, slots=True)
class Loaded:
    """A ledger as it was read. `read_at` is `clock.monotonic()` before the read (for the fence)."""

    record: Record
    etag: str
    read_at: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else wrote first."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """The marker may be deleted, fenced by `read_at`."""

    read_at: float


@dataclass(frozen=True, slots=True)
class Gone:
    """The marker is no longer there."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The task's lease was void; it is pending (or failed) again."""


class Look(enum.Enum):
    """What a claim reads before it writes.

    MARKER is right for a fresh task: its ledger is not there yet. LEDGER is right where a
    ledger is known to exist, BOTH where many claims are lost: a failed PUT costs thirteen GETs.
    """

    MARKER = "marker"
    LEDGER = "ledger"
    BOTH = "both"


Judged = Lost | Garbage | Gone | TakenBack | Leave
Attempted = Claim | Lost | Garbage | Gone | TakenBack | Leave


class Ledger:
    """The steps of the protocol on one queue.

    Parameters
    ----------
    store:
        The bucket, wrapped in the retry layer.
    keys:
        The queue's layout.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        self.store = store
        self.keys = keys
        self.clock = store.time.clock
        self._poison: dict[str, str] = {}

    def mint_nonce(self) -> str:
        """Return a mark for one write, by which a lost reply is settled (rule 2)."""
        return token(self.clock)

    # --- loading ---------------------------------------------------------------------------

    async def load(self, task_id: str) -> Loaded | None:
        """Read a task's ledger; None if it was never claimed (or is long archived).

        Raises
        ------
        PoisonRecord, NewerLayout
            The ledger cannot be read.
        """
        read_at = self.clock.monotonic()
        blob = await self.store.get(self.keys.ledger(task_id))
        return None if blob is None else Loaded(decode(blob.body, task_id=task_id), blob.etag, read_at)

    async def find(self, task_id: str) -> Record | None:
        """Read a task wherever it stands: ledger, first marker, ledger again (rule 22).

        Raises
        ------
        PoisonRecord, NewerLayout
            The record cannot be read.
        """
        loaded = await self.load(task_id)
        if loaded is None:
            try:
                first = self.keys.first_marker(task_id)
            except ValueError:  # an id that no submission here makes: only a ledger could know it
                return None
            blob = await self.store.get(self.keys.marker_key(first))
            if blob is not None:
                return decode(blob.body, task_id=task_id)
            loaded = await self.load(task_id)
        return None if loaded is None else loaded.record

    # --- submit (rule 4) -------------------------------------------------------------------

    async def submit(self, record: Record, *, minted_at: float) -> None:
        """Make a new task durable: its first marker carries the record. One request.

        That the key exists already is success too: the id is random, so it is our own resend.

        Parameters
        ----------
        record:
            The pending record.
        minted_at:
            `clock.monotonic()` when its id was minted.
        """
        key = self.keys.marker_key(self.keys.first_marker(record.id))
        await self.store.put(key, encode(record), IfAbsent(minted_at))

    # --- claim (rule 8) --------------------------------------------------------------------

    async def claim(
        self,
        marker: Marker,
        *,
        has_body: bool,
        look: Look,
        owner: Incarnation,
        handles: Container[str],
    ) -> Attempted:
        """Try to claim the task of a marker that was seen in a listing.

        Parameters
        ----------
        marker, has_body:
            The marker, and whether the listing gave it a size.
        look:
            What to read before writing; an empty marker is never read.
        owner:
            Who claims.
        handles:
            The task types that may be claimed.

        Returns
        -------
        Attempted
            The `Claim`, or why there is none.

        Raises
        ------
        PoisonRecord, NewerLayout
            The record cannot be read.
        """
        ledger_key = self.keys.ledger(marker.task_id)
        read_at = self.clock.monotonic()
        needs_ledger = ident.version(marker.task_id) == 8  # rule 1
        if look is Look.LEDGER or not has_body or needs_ledger:
            body, ledger = None, await self.store.get(ledger_key)
        elif look is Look.BOTH:
            body, ledger = await asyncio.gather(
                self.store.get(self.keys.marker_key(marker)), self.store.get(ledger_key)
            )
        else:
            body, ledger = await self.store.get(self.keys.marker_key(marker)), None
        if ledger is not None:
            loaded = Loaded(decode(ledger.body, task_id=marker.task_id), ledger.etag, read_at)
            return await self._act(marker, loaded, owner, handles)
        if body is not None:
            return await self._claim_first(marker, body, read_at, owner, handles)
        if needs_ledger and has_body:
            return Leave(until_ms=self.store.time.lower_ms())  # its ledger is being written
        return Gone() if has_body else Garbage(read_at)

    async def _claim_first(
        self, marker: Marker, body: Blob, read_at: float, owner: Incarnation, handles: Container[str]
    ) -> Attempted:
        record = decode(body.body, task_id=marker.task_id)
        if self.keys.marker_of(record) != marker:
            raise PoisonRecord(f"{body.key}: the record inside belongs to another marker")
        if record.task_type not in handles:
            return Leave()
        return await self._write_claim(record, marker, owner, IfAbsent(read_at))

    async def _act(
        self, marker: Marker, loaded: Loaded, owner: Incarnation, handles: Container[str]
    ) -> Attempted:
        record = loaded.record
        is_orphan = record.status == TaskStatus.Running and await self._is_nobodys(record, owner)
        now_ms = self.store.time.lower_ms()
        match judge(marker, record, now_ms=now_ms, handles=handles, is_orphan=is_orphan):
            case Claimable():
                return await self._write_claim(record, marker, owner, IfMatches(loaded.etag))
            case Void():
                return TakenBack() if await self.take_back(loaded) else Lost()
            case Cancelled():
                return await self._fail_cancelled(loaded)
            case Deletable():
                return Garbage(loaded.read_at)
            case Leave(until_ms=int(until_ms)) if record.status == TaskStatus.Running:
                return Leave(min([until_ms, *_looks_ms(record, now_ms)]))
            case Leave() as leave:
                return leave

    async def _is_nobodys(self, record: Record, owner: Incarnation) -> bool:
        """Whether a running record's lease is void before its end (rule 9)."""
        if record.incarnation == owner.id:
            return not owner.knows(record.lease_id)
        if self.store.time.lower_ms() - parse_ms(record.updated_at) < LOOKS_MS[0]:
            return False
        return await self.owner_is_gone(record)

    async def _write_claim(
        self, record: Record, marker: Marker, owner: Incarnation, condition: IfAbsent | IfMatches
    ) -> Claim | Lost:
        lease_id = token(self.clock)
        running = claim(
            record,
            at_ms=next_moment_ms(record, self.store.time.now_ms()),
            lease_id=lease_id,
            nonce=self.mint_nonce(),
            worker_id=owner.worker_id,
            incarnation=owner.id,
        )
        key = self.keys.ledger(record.id)
        owner.begin_claim(lease_id)
        try:
            written = await self.store.put(key, encode(running), condition, ours=holds_lease(lease_id))
            if written is None:
                return Lost()
            if written.body is not None:
                running = decode(written.body, task_id=record.id)
            assert running.lease_expires_at is not None  # noqa: S101 - claim() sets it
            owner.enter(record.id, lease_id, running.lease_expires_at, now=self.clock.monotonic())
            return Claim(running, written.etag, lease_id, marker, owner)
        finally:
            owner.end_claim(lease_id)

    async def _fail_cancelled(self, loaded: Loaded) -> Lost | Garbage:
        nonce = self.mint_nonce()
        at_ms = next_moment_ms(loaded.record, self.store.time.now_ms())
        failed = cancelled(loaded.record, at_ms=at_ms, nonce=nonce)
        await self._prepare(failed)
        read_at = self.clock.monotonic()
        written = await self.replace(failed, loaded.etag, nonce)
        return Lost() if written is None else Garbage(read_at)

    # --- take back (rule 9) ----------------------------------------------------------------

    async def inspect(self, marker: Marker, *, has_body: bool, act: bool = True) -> Judged:
        """Judge an old marker whatever its task's type, as a sweep does: take back, or find garbage.

        Without `act` nothing is taken back.

        Raises
        ------
        PoisonRecord, NewerLayout
            The record cannot be read.
        """
        read_at = self.clock.monotonic()
        loaded = await self.load(marker.task_id)
        if loaded is None:
            return Gone() if has_body else Garbage(read_at)
        record = loaded.record
        is_orphan = record.status == TaskStatus.Running and await self.owner_is_gone(record)
        now_ms = self.store.time.lower_ms()
        match judge(marker, record, now_ms=now_ms, handles=(), is_orphan=is_orphan):
            case Void() if act:
                return TakenBack() if await self.take_back(loaded) else Lost()
            case Deletable():
                return Garbage(read_at)
            case _:
                return Leave()

    async def owner_is_gone(self, record: Record) -> bool:
        """Whether the session of a running record's owner is a tombstone or absent.

        The record must have been read before this is asked.
        """
        if record.worker_id is None or record.incarnation is None:
            return True
        blob = await self.store.get(session_key(self.keys.prefix, record.worker_id, record.incarnation))
        if blob is None:
            return True
        try:
            return decode_session(blob.body).state == TOMBSTONE
        except (PoisonRecord, NewerLayout):
            return False

    async def take_back(self, loaded: Loaded) -> bool:
        """Give a running task whose lease is void back to the queue; False if the record changed.

        The new marker is written first, so the task has one whenever it is pending.
        """
        nonce = self.mint_nonce()
        record = taken_back(loaded.record, at_ms=self.store.time.now_ms(), nonce=nonce)
        await self._prepare(record)
        return await self.replace(record, loaded.etag, nonce) is not None

    # --- complete, retry, release (rule 15) --------------------------------------------------

    async def settle(self, held: Claim, outcome: Outcome) -> Record | None:
        """Write what an attempt came to; None if the lease was lost and the outcome is dropped.

        May be called again with the same arguments after `OutcomeUnknown` or `Unavailable`:
        the outcome's nonce tells whether an earlier call had won.

        Raises
        ------
        OutcomeUnknown, Unavailable
            It is not known whether the outcome stands; the task is still in flight.
        """
        record, etag = held.record, held.etag
        while True:
            after = settled(record, outcome)
            await self._prepare(after)
            if await self.replace(after, etag, outcome.nonce) is not None:
                return after
            blob = await self.store.get(self.keys.ledger(record.id))
            current = None if blob is None else decode(blob.body, task_id=record.id)
            match judge_refused(current, lease_id=held.lease_id, nonce=outcome.nonce):
                case Won():
                    return current
                case LeaseLost():
                    return None
            assert blob is not None  # noqa: S101 - a lease can only stand in a record
            assert current is not None  # noqa: S101
            record, etag = current, blob.etag

    # --- writing ---------------------------------------------------------------------------

    async def _prepare(self, record: Record) -> None:
        """Write what must stand before the record: its marker, or its entry among the failed."""
        if record.status == TaskStatus.Failed:
            await self.store.put(self.keys.failed(record.id), b"", Always())
        marker = next_marker(self.keys, record)
        if marker is not None:
            await self.store.put(self.keys.marker_key(marker), b"", IfAbsent(None))

    async def note_poison(self, task_id: str, reason: str) -> None:
        """Write down why a record cannot be read, once (rule 20)."""
        if self._poison.get(task_id) == reason:
            return
        await self.store.put(self.keys.poison(task_id), reason.encode("utf-8", "backslashreplace"), Always())
        if len(self._poison) >= POISON_REMEMBERED:
            self._poison.clear()
        self._poison[task_id] = reason

    def replace(self, record: Record, etag: str, nonce: str) -> Awaitable[Written | None]:
        """Write a record over the version with this ETag; None if it has changed."""
        key = self.keys.ledger(record.id)
        return self.store.put(key, encode(record), IfMatches(etag), ours=bears_nonce(nonce))


def _looks_ms(record: Record, now_ms: int) -> list[int]:
    """When the owner of a running record is still to be looked for, Unix ms."""
    claimed_ms = parse_ms(record.updated_at)
    return [claimed_ms + look for look in LOOKS_MS if claimed_ms + look > now_ms]
