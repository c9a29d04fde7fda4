"""One monitor's view of a queue: recovers what crashed processes held (rules 9, 14, 17, 20).

It lists the sessions, declares those dead that stopped beating, takes their tasks back, and
sweeps old markers. Any number may watch; killed at any step, the next one finishes the work.

Example::

    watch = Watch(queue.ledger, queue.store)
    await watch.check(own_id)           # one look; `Monitor(queue).run()` goes on
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from buquet._core.rfc3339 import parse_ms
from buquet.clock import token
from buquet.deletions import Deletions
from buquet.errors import NewerLayout, PoisonRecord, StoreError, Unavailable
from buquet.ledger import Garbage, Ledger, Loaded
from buquet.protocol.keys import Marker
from buquet.protocol.session import (
    MONITOR,
    TOMBSTONE,
    Entry,
    Session,
    SessionKey,
    buried,
    decode,
    encode,
    parse_session_key,
)
from buquet.protocol.task import TaskStatus
from buquet.protocol.transitions import LEASE_SLACK_MS, void_at_ms
from buquet.store.interface import Blob, FenceExpired, IfMatches, Undecided
from buquet.store.interface import Entry as Listed
from buquet.store.retry import Retrying

log = logging.getLogger("buquet.monitor")

DEFAULT_LIFETIME_S = 30.0
"""The lifetime of a session that was not read yet; burying goes by its own."""

SIGHTINGS_APART = 2 / 3
"""Two LISTs this share of a lifetime apart (20 s of 30) must show the same ETag before a burial."""

TURN_OF_OTHERS = 4
"""A monitor that is not the acting one acts at every so many checks, in case that one is stuck."""

SOONEST_S = 1.0
"""Checks are at least this far apart."""

SETTLED_AT_ONCE = 16
"""How many entries of a dead session's journal are settled at the same time."""

SWEEP_AFTER_MS = 60_000
SWEEP_READS = 50
"""How many markers a sweep judges at most: an honest backlog must not cost a read a task a scan."""

IDLE_SPREAD_BYTES = 60
"""By how much the size of a session without leases varies; one lease adds more than this."""


@dataclass(slots=True)
class _Sighting:
    """What this monitor remembers of a session while its ETag stays the same."""

    etag: str
    since: float
    """`clock.monotonic()` after the first LIST of an unbroken row that showed this ETag."""
    stale_at: float
    """When, by `clock.monotonic()`, the session is older than its lifetime."""
    is_read: bool = False
    lifetime_s: float = DEFAULT_LIFETIME_S
    idle_size: float = -math.inf
    """The size of the object when its journal was last seen empty."""
    next_void_ms: float = math.inf
    """When the first lease of the journal becomes void, by the store's time."""
    is_tombstone: bool = False
    is_foreign: bool = False
    """It cannot be read, so nothing is done about it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A session as one LIST showed it; `age_s` by the store's own clock."""

    listed: Listed
    key: SessionKey
    age_s: float


class Watch:
    """One monitor's view of the sessions and markers of a queue.

    Parameters
    ----------
    ledger:
        The protocol's steps on the queue.
    store:
        The queue's store; a LIST of the sessions is tried once, so that a failed one counts.
    on_counted:
        Called when it is known which sessions live, before anything is done about the others.
    """

    def __init__(
        self, ledger: Ledger, store: Retrying, on_counted: Callable[[], None] = lambda: None
    ) -> None:
        self.live: list[str] = []
        """The incarnations whose sessions lived at the last check."""
        self._ledger = ledger
        self._store = store
        self._on_counted = on_counted
        self._clock = ledger.clock
        self._prefix = ledger.keys.prefix
        self._sightings: dict[str, _Sighting] = {}
        self._deletions = Deletions(store)
        self._sweep_after = ""
        self._checks = 0
        self._refusals: list[StoreError | FenceExpired] = []
        """What single objects met during this check."""
        self._listed_at = -math.inf

    @property
    def live_sessions(self) -> int:
        """How many sessions lived at the last check (W of rule 7)."""
        return max(1, len(self.live))

    async def check(self, own_id: str) -> None:
        """Look at all sessions once, and act on them if it is this monitor's turn.

        Parameters
        ----------
        own_id:
            This process's incarnation.

        Raises
        ------
        Unavailable
            The store did not answer. If that was the list of the sessions, nothing that was seen before
            counts for a burial.
        StoreError, FenceExpired
            The first that a single object met, after all the others had their turn.
        """
        asked_at = self._clock.monotonic()
        seen = await self._list()
        is_turn = self._is_turn(seen, own_id)
        self._checks += 1
        if not is_turn:
            return
        self._refusals.clear()
        for session in seen:
            with self._going_on():
                await self._look_at(session, asked_at)
        with self._going_on():
            await self._sweep()
        await self._deletions.flush()
        if self._refusals:
            raise self._refusals[0]

    async def count(self) -> None:
        """Count the live sessions, and do nothing about the others.

        Raises
        ------
        StoreError
            The store did not answer.
        """
        await self._list()

    def next_check_s(self, interval_s: float) -> float:
        """How long until the next check: the interval, or less if a session may turn out dead."""
        due = min((self._buriable_at(sighting) for sighting in self._sightings.values()), default=math.inf)
        return min(interval_s, max(due - self._clock.monotonic(), SOONEST_S))

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """Let the check outlast what one object meets; a store that is away ends it at once."""
        try:
            yield
        except Unavailable:
            raise
        except (StoreError, FenceExpired) as error:
            self._refusals.append(error)

    # --- the sessions ----------------------------------------------------------------------

    async def _list(self) -> list[_Seen]:
        seen: list[_Seen] = []
        prefix, after = self._ledger.keys.sessions, ""
        while True:
            try:
                page = await self._store.once.list(prefix, after=after)
            except (Undecided, StoreError) as error:
                # After an outage every session looks stale: what was seen before it counts no more.
                self._sightings.clear()
                raise Unavailable(f"sessions not listed: {error}", key=prefix) from error
            for listed in page.entries:
                try:
                    key = parse_session_key(self._prefix, listed.key)
                except PoisonRecord as error:
                    log.debug("%s", error)
                    continue
                seen.append(_Seen(listed, key, (page.date_ms - listed.modified_ms) / 1000))
            if not page.truncated:
                break
            after = page.entries[-1].key
        self._remember(seen)
        return seen

    def _remember(self, seen: list[_Seen]) -> None:
        now = self._clock.monotonic()
        before, self._sightings = self._sightings, {}
        for session in seen:
            key, etag = session.listed.key, session.listed.etag
            known = before.get(key)
            lifetime_s = DEFAULT_LIFETIME_S if known is None else known.lifetime_s
            if known is None or known.etag != etag:
                idle_size = -math.inf if known is None else known.idle_size
                stale_at = now + lifetime_s - session.age_s
                known = _Sighting(etag, now, stale_at, lifetime_s=lifetime_s, idle_size=idle_size)
            elif now - self._listed_at > known.lifetime_s or self._store.back_at > known.since:
                # This monitor slept, perhaps its whole host did, or the store was away after a LIST:
                # nobody could be seen to live meanwhile.
                known.since = now
            self._sightings[key] = known
        self._listed_at = now
        self.live = [session.key.incarnation for session in seen if self._lives(session)]
        self._on_counted()

    def _lives(self, session: _Seen) -> bool:
        sighting = self._sightings[session.listed.key]
        return not sighting.is_tombstone and session.age_s <= sighting.lifetime_s

    def _is_turn(self, seen: list[_Seen], own_id: str) -> bool:
        """Whether this monitor acts now: the live one with the smallest key does, others sometimes.

        Of one worker id only the newest counts: the older ones are those of killed processes.
        """
        newest: dict[str, _Seen] = {}
        for session in sorted(seen, key=lambda session: session.listed.modified_ms):
            if session.key.role == MONITOR and self._lives(session):
                newest[session.key.name] = session
        acting = min(newest.values(), key=lambda session: session.listed.key, default=None)
        if acting is None or acting.key.incarnation == own_id:
            return True
        return self._checks % TURN_OF_OTHERS == 0

    def _buriable_at(self, sighting: _Sighting) -> float:
        if sighting.is_tombstone or sighting.is_foreign:
            return math.inf
        return max(sighting.stale_at, sighting.since + SIGHTINGS_APART * sighting.lifetime_s)

    async def _look_at(self, session: _Seen, asked_at: float) -> None:
        sighting = self._sightings[session.listed.key]
        if sighting.is_foreign:
            return
        is_stale = session.age_s > sighting.lifetime_s and (
            asked_at >= sighting.since + SIGHTINGS_APART * sighting.lifetime_s
        )
        if not is_stale and not self._is_worth_reading(session, sighting):
            return
        read_at = self._clock.monotonic()
        blob = await self._store.get(session.listed.key)
        if blob is None or blob.etag != sighting.etag:
            return
        try:
            found = decode(blob.body)
        except (PoisonRecord, NewerLayout) as error:
            log.warning("session %s left alone: %s", session.listed.key, error)
            sighting.is_foreign = True
            return
        self._note(sighting, session, found)
        if found.state == TOMBSTONE:
            await self._recover(session.listed.key, found, read_at)
        elif is_stale and self._is_dead(blob, found, sighting):
            await self._bury(session.listed.key, found, blob.etag)
        else:
            await self._take_back_expired(found)

    def _is_dead(self, blob: Blob, found: Session, sighting: _Sighting) -> bool:
        """Whether a session is stale by this GET too, and the store was not away before it answered that."""
        was_away = self._store.back_at > sighting.since
        return (blob.date_ms - blob.modified_ms) / 1000 > found.lifetime_s and not was_away

    def _is_worth_reading(self, session: _Seen, sighting: _Sighting) -> bool:
        if sighting.is_tombstone or self._store.time.lower_ms() > sighting.next_void_ms:
            return True
        # An unchanged session was read before; one of the size of an empty one has no leases.
        return not sighting.is_read and session.listed.size > sighting.idle_size + IDLE_SPREAD_BYTES

    def _note(self, sighting: _Sighting, session: _Seen, found: Session) -> None:
        sighting.is_read = True
        sighting.is_tombstone = found.state == TOMBSTONE
        sighting.stale_at += found.lifetime_s - sighting.lifetime_s
        sighting.lifetime_s = found.lifetime_s
        ends = [parse_ms(entry.lease_expires_at) + LEASE_SLACK_MS for entry in found.journal]
        sighting.next_void_ms = min(ends, default=math.inf)
        if not found.journal:
            sighting.idle_size = session.listed.size

    async def _bury(self, key: str, found: Session, etag: str) -> None:
        tombstone = buried(found, nonce=token(self._clock))
        read_at = self._clock.monotonic()
        written = await self._store.put(
            key, encode(tombstone), IfMatches(etag), ours=lambda body: body == encode(tombstone)
        )
        if written is None:
            return
        log.warning(
            "session %s of worker %s is dead; up to %d tasks to recover",
            key,
            found.worker_id,
            len(found.journal),
        )
        self._sightings[key].is_tombstone = True
        await self._recover(key, tombstone, read_at)

    async def _recover(self, key: str, tombstone: Session, read_at: float) -> None:
        """Take back what a dead session held; delete the tombstone when nothing is left."""
        if await self._settle_all(tombstone.journal, dead=True):
            await self._store.delete(key, read_at=read_at)
            self._sightings.pop(key, None)

    async def _take_back_expired(self, found: Session) -> None:
        void_ms = self._store.time.lower_ms() - LEASE_SLACK_MS
        expired = [entry for entry in found.journal if void_ms > parse_ms(entry.lease_expires_at)]
        await self._settle_all(expired, dead=False)

    async def _settle_all(self, journal: list[Entry], *, dead: bool) -> bool:
        """Settle entries, some at a time; return whether all are settled."""
        are_settled = True
        for start in range(0, len(journal), SETTLED_AT_ONCE):
            settling = (self._settle(entry, dead=dead) for entry in journal[start : start + SETTLED_AT_ONCE])
            # Collected, so that none goes on by itself after another one has failed.
            for outcome in await asyncio.gather(*settling, return_exceptions=True):
                are_settled &= outcome is True
                if isinstance(outcome, BaseException):
                    with self._going_on():
                        raise outcome
        return are_settled

    async def _settle(self, entry: Entry, *, dead: bool) -> bool:
        """Take a task back while it runs under this lease; return whether it no longer does.

        A refused write proves nothing: the ledger is read again until it shows another state.
        """
        while True:
            try:
                loaded = await self._ledger.load(entry.task_id)
            except PoisonRecord as error:
                await self._ledger.note_poison(entry.task_id, str(error))
                return True
            except NewerLayout:
                return False
            if loaded is None or not _runs_under(loaded, entry.lease_id):
                return True
            if not dead and self._store.time.lower_ms() <= void_at_ms(loaded.record):
                return False
            if await self._ledger.take_back(loaded):
                log.info("task %s taken back from worker %s", entry.task_id, loaded.record.worker_id)
                return True

    # --- the markers -----------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Judge some old markers, whatever their type, from a cursor that wraps."""
        horizon_ms = self._store.time.lower_ms() - SWEEP_AFTER_MS
        page = await self._store.list(self._ledger.keys.ready, after=self._sweep_after)
        judged = 0
        for entry in page.entries:
            marker = self._old_marker(entry.key, horizon_ms)
            if marker is not None and judged == SWEEP_READS:
                return
            # Whatever comes of it: the next sweep must not begin with the same one.
            self._sweep_after = entry.key
            if marker is not None:
                judged += 1
                with self._going_on():
                    await self._judge(marker, entry)
        if not page.truncated:
            self._sweep_after = ""

    def _old_marker(self, key: str, horizon_ms: float) -> Marker | None:
        try:
            marker = self._ledger.keys.parse_marker(key)
        except PoisonRecord as error:
            log.debug("%s", error)
            return None
        return marker if marker.due_ms < horizon_ms else None

    async def _judge(self, marker: Marker, entry: Listed) -> None:
        try:
            found = await self._ledger.inspect(marker, has_body=entry.size > 0)
        except PoisonRecord as error:
            await self._ledger.note_poison(marker.task_id, str(error))
        except NewerLayout as error:
            log.debug("%s", error)
        else:
            if isinstance(found, Garbage):
                self._deletions.add(entry.key, read_at=found.read_at)


def _runs_under(loaded: Loaded, lease_id: str) -> bool:
    return loaded.record.status == TaskStatus.Running and loaded.record.lease_id == lease_id
