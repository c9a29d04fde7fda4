"""The heartbeat: keeps a process's session alive and journals its leases (rules 11, 12, 18).

It has a store of its own and, in life, a thread of its own, so that a handler which blocks
the event loop does not look dead. A simulation hosts the same coroutine on its virtual loop.

Example::

    pulse = Pulse(queue, Profile(worker_id="worker-1", role="m"), on_journaled=mark)
    await pulse.start()             # the session stands: claims may begin
    pulse.me.enter(...)             # journaled within a second
    await pulse.stop()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from buquet.clock import token
from buquet.errors import NewerLayout, PoisonRecord, StoreError, Unavailable
from buquet.incarnation import Incarnation
from buquet.protocol.session import (
    LIVE,
    Entry,
    Session,
    buried,
    decode,
    encode,
    mint_incarnation,
    session_key,
)
from buquet.queue import Queue
from buquet.store.interface import FenceExpired, IfAbsent, IfMatches, Undecided
from buquet.store.retry import Retrying, RetryLimits

log = logging.getLogger("buquet.heartbeat")

HEARTBEAT_LIMITS = RetryLimits(attempts=4, total_s=6.0, max_delay_s=2.0)
"""A heartbeat's back-off stays well below its interval (rule 17)."""

JOURNAL_S = 1.0
"""A lease held longer than this is journaled at once."""

PAUSE_S = 1.0
"""How long after a heartbeat that failed the next one is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a session says about its process.

    `describe` returns the counters of the moment.
    """

    worker_id: str
    role: str
    interval_s: float = 10.0
    lifetime_s: float = 30.0
    shards: int = 0
    task_types: Sequence[str] = ()
    describe: Callable[[], dict[str, int]] = field(default=dict)


class Heartbeat:
    """The session of one process.

    Parameters
    ----------
    store:
        A store that nothing else uses, in its retry layer.
    prefix:
        The queue's prefix.
    profile:
        What the session says.
    on_journaled:
        Called with the leases that an acknowledged journal lists for the first time.
    """

    def __init__(
        self,
        store: Retrying,
        prefix: str,
        profile: Profile,
        *,
        on_journaled: Callable[[list[str]], None],
    ) -> None:
        self._store = store
        self._clock = store.time.clock
        self._prefix = prefix
        self._profile = profile
        self._on_journaled = on_journaled
        self._journal_after_s = max(JOURNAL_S, 2 * store.capabilities.write_interval_s)
        self._wake = asyncio.Event()
        self._etag = ""
        self._last: Session | None = None
        self._unsettled: set[str] = set()
        self._stopping = False
        self._beat_at = 0.0
        self.me = self._incarnate()
        """The incarnation that claims; replaced when its session is found dead."""

    # --- rule 11: one create an incarnation, never resent ------------------------------------

    async def create(self) -> None:
        """Create the session; claims may begin when this returns."""
        is_told = False
        while not await self._try_create() and not self._stopping:
            if not is_told:
                log.warning("waiting for the store: session %s could not be created", self._key())
                is_told = True
            self.me = self._incarnate()
            await self._clock.sleep(self._clock.uniform() * PAUSE_S)

    async def _try_create(self) -> bool:
        session = self._session([], rev=0)
        key, sent_at = self._key(), self._clock.monotonic()
        try:
            written = await self._store.once.put(key, encode(session), IfAbsent(self._clock.monotonic()))
            etag = None if written is None else written.etag
        except Undecided:
            etag = await self._etag_if(key, session.nonce)
        except FenceExpired:  # the process stood still before it could be sent
            return False
        if etag is None:
            return False
        self._acknowledged(session, etag, sent_at)
        self.me.is_alive = True
        return True

    async def _etag_if(self, key: str, nonce: str) -> str | None:
        with contextlib.suppress(StoreError, PoisonRecord, NewerLayout):
            blob = await self._store.get(key)
            if blob is not None and decode(blob.body).nonce == nonce:
                return blob.etag
        return None

    @property
    def may_claim(self) -> bool:
        """Whether the session stands and nobody can take it for dead: only then claims may begin (rule 8)."""
        return self.me.is_alive and self._clock.monotonic() - self._beat_at < self._profile.lifetime_s

    # --- beating ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Send heartbeats until `stop()`."""
        self.me.on_unjournaled = self._waker()
        while not self._stopping:
            due_s = self._due_at() - self._clock.monotonic()
            if due_s > 0:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s):
                        await self._wake.wait()
                continue
            try:
                await self.beat()
            except StoreError as error:
                log.debug("heartbeat failed: %s", error)
                await self._clock.sleep(PAUSE_S)
            except Exception:
                # Whatever it is, a worker that goes on without a heartbeat would lose all it does.
                log.exception("heartbeat failed")
                await self._clock.sleep(PAUSE_S)

    def stop(self) -> None:
        """Let `run()` end once no heartbeat is under way. Called on the loop that runs it."""
        self._stopping = True
        self._wake.set()

    def _waker(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended; so has the session
                loop.call_soon_threadsafe(self._wake.set)

        return wake

    def _due_at(self) -> float:
        due_at = self._beat_at + self._profile.interval_s
        since = self.me.unjournaled_since()
        return due_at if since is None else min(due_at, since + self._journal_after_s)

    async def beat(self) -> None:
        """Send one heartbeat with a snapshot of the journal.

        Raises
        ------
        OutcomeUnknown, Unavailable
            It is not known whether it stands; the next one settles that.
        """
        assert self._last is not None  # noqa: S101 - create() came first
        session = self._session(self.me.snapshot(), rev=self._last.rev + 1)
        self._unsettled.add(session.nonce)
        sent_at = self._clock.monotonic()
        try:
            written = await self._store.put(
                self._key(),
                encode(session),
                IfMatches(self._etag),
                ours=lambda body: _nonce(body) == session.nonce,
            )
        except Unavailable:
            self._unsettled.discard(session.nonce)  # nothing of it was applied, nor will be
            raise
        if written is not None:
            self._acknowledged(session, written.etag, sent_at)
            return
        if not await self._catch_up():
            await self._reborn()

    async def _catch_up(self) -> bool:
        """Accept a heartbeat that was applied after we had given it up: its journal stands."""
        blob = await self._store.get(self._key())
        if blob is None:
            return False
        try:
            found = decode(blob.body)
        except (PoisonRecord, NewerLayout):
            return False
        if found.state != LIVE or found.nonce not in self._unsettled:
            return False
        self._acknowledged(found, blob.etag, self._beat_at)
        return True

    def _acknowledged(self, session: Session, etag: str, sent_at: float) -> None:
        # Counted from when it was sent: this process may have stood still before it saw the reply.
        self._etag, self._last, self._beat_at = etag, session, sent_at
        self._unsettled.clear()
        fresh = self.me.acknowledge([entry.lease_id for entry in session.journal])
        if fresh:
            self._on_journaled(fresh)

    async def _reborn(self) -> None:
        """Our session is dead: begin a new incarnation, with nothing in flight."""
        log.warning("session %s was declared dead; a new one begins", self._key())
        self.me.is_alive = False
        self.me = self._incarnate()
        await self.create()
        self.me.on_unjournaled = self._waker()

    # --- the end (rule 18) -------------------------------------------------------------------

    async def close(self) -> bool:
        """Bury and delete the session if nothing is in flight; else leave it to the monitors.

        Returns whether it is gone.
        """
        if len(self.me) or self._last is None:
            return False
        self.me.is_alive = False
        with contextlib.suppress(StoreError, FenceExpired):
            if self._unsettled:
                await self._catch_up()
            tombstone = buried(self._session([], rev=self._last.rev), nonce=token(self._clock))
            written = await self._store.put(
                self._key(),
                encode(tombstone),
                IfMatches(self._etag),
                ours=lambda body: _nonce(body) == tombstone.nonce,
            )
            if written is not None:
                await self._store.delete(self._key(), read_at=self._clock.monotonic())
                return True
        return False

    # --- bits ------------------------------------------------------------------------------

    def _incarnate(self) -> Incarnation:
        return Incarnation(self._profile.worker_id, mint_incarnation(self._profile.role, token(self._clock)))

    def _key(self) -> str:
        return session_key(self._prefix, self.me.worker_id, self.me.id)

    def _session(self, journal: list[Entry], *, rev: int) -> Session:
        now = self._store.time.now()
        return Session(
            rev=rev,
            nonce=token(self._clock),
            worker_id=self.me.worker_id,
            incarnation=self.me.id,
            started_at=now if self._last is None or rev == 0 else self._last.started_at,
            beat_at=now,
            lifetime_s=self._profile.lifetime_s,
            host=socket.gethostname(),
            pid=os.getpid(),
            shards=self._profile.shards,
            task_types=list(self._profile.task_types),
            counters=self._profile.describe(),
            journal=journal,
        )


def _nonce(body: bytes) -> str | None:
    try:
        return decode(body).nonce
    except (PoisonRecord, NewerLayout):
        return None


class Pulse:
    """Hosts a heartbeat: in a thread with a store of its own, or beside its caller.

    Parameters
    ----------
    queue:
        The queue. One that can open a second store gets a thread; a simulation's cannot.
    profile:
        What the session says.
    on_journaled:
        Called on the caller's loop with the leases that an acknowledged journal lists for the
        first time.
    """

    def __init__(self, queue: Queue, profile: Profile, on_journaled: Callable[[list[str]], None]) -> None:
        self._queue = queue
        self._profile = profile
        self._on_journaled = on_journaled
        self._heart: Heartbeat | None = None
        self._host: asyncio.AbstractEventLoop | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._created: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    @property
    def me(self) -> Incarnation:
        """The incarnation that claims."""
        assert self._heart is not None  # noqa: S101 - start() came first
        return self._heart.me

    @property
    def may_claim(self) -> bool:
        """Whether claims may begin now."""
        return self._heart is not None and self._heart.may_claim

    async def start(self) -> None:
        """Create the session and begin to beat.

        Raises
        ------
        StoreError
            The store refused.
        """
        self._home = asyncio.get_running_loop()
        self._created, self._ended = self._home.create_future(), self._home.create_future()
        if self._queue.open_store is None:
            self._task = asyncio.create_task(self._live_here())
        else:
            # A daemon: what is left of a run that was not ended must not keep the process.
            self._thread = threading.Thread(
                target=self._live_in_thread,
                args=(self._queue.open_store,),
                name="buquet-heartbeat",
                daemon=True,
            )
            self._thread.start()
        try:
            await self._created
        except BaseException:
            await self.stop()
            raise

    def abandon(self) -> None:
        """Let `start()` return soon, if it still waits for the store; then there is no session."""
        if self._created is not None and not self._created.done():
            self._ask_to_stop()

    async def stop(self) -> None:
        """Bury the session if nothing is in flight, and end; nothing is left when this returns."""
        self._ask_to_stop()
        if self._ended is None:
            return
        try:
            await asyncio.wait({self._ended})
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait({self._task})
            raise
        if self._thread is not None:
            self._thread.join()

    def _ask_to_stop(self) -> None:
        self._is_stopping = True
        if self._heart is not None and self._host is not None:
            with contextlib.suppress(RuntimeError):  # the thread's loop has ended already
                self._host.call_soon_threadsafe(self._heart.stop)

    # --- where it lives ----------------------------------------------------------------------

    async def _live_here(self) -> None:
        try:
            await self._live(self._queue.store)
        except Exception as error:  # noqa: BLE001 - it is raised where start() waits
            self._tell(self._created, error)
        finally:
            self._tell(self._ended)

    def _live_in_thread(self, open_store: Callable[[], Retrying]) -> None:
        async def live() -> None:
            store = open_store()
            try:
                await self._live(store)
            finally:
                await store.close()

        try:
            asyncio.run(live())
        except Exception as error:  # noqa: BLE001 - it is raised where start() waits
            self._tell(self._created, error)
        finally:
            self._tell(self._ended)

    async def _live(self, store: Retrying) -> None:
        heart = Heartbeat(
            Retrying(store.once, self._queue.clock, HEARTBEAT_LIMITS),
            self._queue.keys.prefix,
            self._profile,
            on_journaled=lambda leases: self._at_home(self._on_journaled, leases),
        )
        self._heart, self._host = heart, asyncio.get_running_loop()
        if self._is_stopping:  # it was asked before there was a heart to tell
            heart.stop()
        await heart.create()
        self._tell(self._created)
        await heart.run()
        await heart.close()

    def _tell(self, future: asyncio.Future[None] | None, error: Exception | None = None) -> None:
        def tell() -> None:
            if future is None or future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._at_home(tell)

    def _at_home(self, call: Callable[..., object], *arguments: object) -> None:
        assert self._home is not None  # noqa: S101 - start() sets it
        with contextlib.suppress(RuntimeError):  # the caller's loop has ended without stop()
            self._home.call_soon_threadsafe(call, *arguments)
