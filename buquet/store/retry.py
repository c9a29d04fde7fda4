"""The retry layer: from single attempts to answers.

`Retrying` sends a request again until its outcome is known, within bounds of count and time.
Between attempts it backs off exponentially with full jitter, waits at least as long as
`Retry-After` asks, and takes a token of a `RetryBudget`, so that all requests together do
not hammer a store that is down. When it answers again, whoever sleeps tries within a second.

Reads, deletes and unconditional writes are the same when done twice: they are just sent
again. A conditional write is not, because its second attempt may meet what the first one
wrote. So it is always the *identical* request that is sent again, and when that meets an
object, the object is read and `judge` decides:

========================  =========================  =========================================
what the read shows       `IfAbsent`                 `IfMatches(etag)`
========================  =========================  =========================================
ours                      won                        won
the state before us       absent: send again         that ETag: send again
anything else             lost                       lost (also if the object is gone)
========================  =========================  =========================================

An attempt that was given up may still be applied *late*, after a resend or after the read:

- Late after we won: its condition fails on our own object, or on what has replaced it.
- Late after "lost": `IfMatches` fails for ever, because ETags never repeat. `IfAbsent` fails
  as long as the other's object stands, and dies with its signature, 15 minutes after the
  fence: whoever deletes objects that are also created has to wait that long.
- The state before us proves nothing, since the attempt may be applied a moment later. It is
  never taken for "lost": the request is sent again until it is decided.
- An unconditional write may overwrite a newer one with its own body. `Always` is only for
  keys whose writers all write the same, or for which the last word does not matter.

Layers, from the outside: `Retrying`, then `pace.Paced` where a store needs it (a resend is
paced like any write), then the store, which checks the fence at every attempt.

Errors: `OutcomeUnknown` when an attempt may have been applied and nothing told, `Unavailable`
when none can have been, `FenceExpired` when the decision grew too old before any attempt that
may have been applied; `StoreError` as the store raises it. A cancelled call leaves open
whether the write took effect.

Example::

    store = Retrying(S3Store(...), clock)
    written = await store.put(key, body, IfMatches(etag), ours=lambda body: lease_id in body)
    await store.once.put(session_key, body, IfAbsent(now))      # one attempt, never resent
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from buquet.errors import BuquetError, OutcomeUnknown, StoreError, Unavailable
from buquet.store.interface import (
    Always,
    Blob,
    Capabilities,
    Condition,
    Entry,
    FenceExpired,
    IfMatches,
    Page,
    Store,
    Undecided,
    Written,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from buquet.clock import Clock, StoreClock

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long to go on, and how fast.

    Parameters
    ----------
    attempts:
        After how many answers that decide nothing a call gives up; those to the reads that
        settle a write count too.
    total_s:
        No attempt begins later than this after the call, in seconds.
    first_delay_s, max_delay_s:
        The longest pause before the second attempt, doubled for each further one, and its
        ceiling, in seconds. The pause is drawn evenly from zero to that (full jitter).
    burst:
        Retries that may be made at once, over all calls.
    per_second:
        Retries a second that are allowed beyond that, whatever the store answers.
    per_success:
        Retries that each answered request allows in addition, so that a store which loses
        some replies is not slowed down, while one that answers nothing is.
    """

    attempts: int = 10
    total_s: float = 60.0
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    burst: float = 50.0
    per_second: float = 5.0
    per_success: float = 0.5


DEFAULT_LIMITS = RetryLimits()

OUTAGE_S = 5.0
"""Where requests failed for so long and none was answered, the store was away."""

BACK_WITHIN_S = 1.0
"""When it is back, those who sleep try again spread over this time."""


def backoff_s(limits: RetryLimits, attempt: int, chance: float, retry_after_s: float | None) -> float:
    """Return the pause after a failed attempt, in seconds.

    Parameters
    ----------
    limits:
        The bounds.
    attempt:
        Which attempt failed, from 1.
    chance:
        A random number in [0, 1).
    retry_after_s:
        What the store asked for; the jitter comes on top, so that not all clients come back
        at the same moment.
    """
    ceiling = min(limits.max_delay_s, limits.first_delay_s * 2.0 ** (attempt - 1))
    return (retry_after_s or 0.0) + ceiling * chance


class RetryBudget:
    """A token bucket: what all requests of a store together may spend on retries.

    It also knows when the store was away: nobody shall sleep off an outage that is over.

    Parameters
    ----------
    clock:
        Where the time comes from.
    limits:
        `burst` tokens at first and at most, `per_second` and `per_success` more.
    """

    def __init__(self, clock: Clock, limits: RetryLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._tokens = limits.burst
        self._at = clock.monotonic()
        self._failing_since: float | None = None
        self._is_back = asyncio.Event()
        self.back_at = -math.inf
        """When the last outage ended, `clock.monotonic()`."""

    def earn(self) -> None:
        """Add what an answered request is worth; after an outage, begin anew and wake who sleeps."""
        if self._failing_since is not None:
            now = self._clock.monotonic()
            if now - self._failing_since > OUTAGE_S:
                self._tokens = self._limits.burst
                self.back_at = now
                self._is_back.set()
                self._is_back = asyncio.Event()
            self._failing_since = None
        self._tokens = min(self._limits.burst, self._tokens + self._limits.per_success)

    def take(self, most_s: float) -> float | None:
        """Take a token, after a request that failed, that is there in at most `most_s` seconds.

        Returns how long to wait for it, in seconds; None, and nothing is taken, if that
        would be longer.
        """
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        earned = (now - self._at) * self._limits.per_second
        self._tokens = min(self._limits.burst, self._tokens + earned)
        self._at = now
        wait_s = max(0.0, (1.0 - self._tokens) / self._limits.per_second)
        if wait_s > most_s:
            return None
        self._tokens -= 1.0
        return wait_s

    async def sleep(self, delay_s: float) -> None:
        """Pause for `delay_s` seconds, or until shortly after the store is back from an outage."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._is_back.wait()
                await self._clock.sleep(self._clock.uniform() * BACK_WITHIN_S)


class Open(enum.Enum):
    """The finding that a write was not applied, or not yet."""

    OPEN = enum.auto()


def judge(
    blob: Blob | None, body: bytes, condition: Condition, ours: Callable[[bytes], bool]
) -> Written | Open | None:
    """Say what has become of a conditional write, from the object that was read after it.

    Returns what the put shall return, or `Open.OPEN` if the read shows the state before it.
    """
    if blob is not None and ours(blob.body):
        return Written(blob.etag, None if blob.body == body else blob.body)
    if isinstance(condition, IfMatches):
        unchanged = blob is not None and blob.etag == condition.etag
    else:
        unchanged = blob is None
    return Open.OPEN if unchanged else None


@dataclass(frozen=True, slots=True)
class _Doubt:
    """An attempt that told nothing; `read` says whether the object must be read now."""

    cause: Undecided | FenceExpired
    read: bool


class _Call:
    """The attempts of one call: how many, until when, and what may have been applied.

    Parameters
    ----------
    what:
        The request in words, for messages.
    key:
        The object's key.
    """

    def __init__(self, what: str, key: str, limits: RetryLimits, clock: Clock, budget: RetryBudget) -> None:
        self.maybe_applied = False
        self._what = what
        self._key = key
        self._limits = limits
        self._clock = clock
        self._budget = budget
        self._attempts = 0
        self._deadline = clock.monotonic() + limits.total_s

    def note(self, cause: Undecided) -> None:
        """Take note of an attempt to write that told nothing."""
        self.maybe_applied |= cause.applied is not False

    async def pause(self, cause: Undecided | FenceExpired) -> None:
        """Wait until the next attempt may begin; raise if there must not be one."""
        self._attempts += 1
        if isinstance(cause, FenceExpired) or self._attempts >= self._limits.attempts:
            raise self.given_up(cause) from cause
        left_s = self._deadline - self._clock.monotonic()
        delay_s = backoff_s(self._limits, self._attempts, self._clock.uniform(), cause.retry_after_s)
        token_s = self._budget.take(left_s) if delay_s <= left_s else None
        if token_s is None:
            raise self.given_up(cause) from cause
        delay_s = max(delay_s, token_s)
        log.debug("%s %s: %s; next attempt in %.3f s", self._what, self._key, cause, delay_s)
        if cause.retry_after_s:
            await self._clock.sleep(delay_s)
        else:
            await self._budget.sleep(delay_s)

    def given_up(self, cause: Exception) -> StoreError:
        """Return the error that says truly how the call ended without an answer."""
        if self.maybe_applied:
            return OutcomeUnknown(
                f"{self._what} {self._key}: no reply told whether it took effect ({cause}); "
                "read the object to find out",
                key=self._key,
            )
        return Unavailable(
            f"{self._what} {self._key}: the store could not serve it ({cause}); "
            "check that it is up and reachable, then try again",
            key=self._key,
        )


def _doubt(call: _Call, error: BuquetError, condition: Condition) -> _Doubt:
    """Say what an attempt at a conditional write that failed leaves open; raise if it is nothing."""
    if isinstance(error, Undecided):
        call.note(error)
        return _Doubt(error, read=error.reread and isinstance(condition, IfMatches))
    if not call.maybe_applied:
        raise error
    if isinstance(error, FenceExpired):
        return _Doubt(error, read=True)
    raise call.given_up(error) from error


class Retrying:
    """A store whose answers are final: see the module's text.

    Parameters
    ----------
    store:
        The store that makes single attempts.
    clock:
        The host's clock, for pauses and jitter.
    limits:
        How long to go on, and how fast.
    """

    def __init__(self, store: Store, clock: Clock, limits: RetryLimits = DEFAULT_LIMITS) -> None:
        self.once = store
        """The store below: one attempt a call, for what must never be sent twice."""
        self.time: StoreClock = store.time
        """The store's time."""
        self._clock = clock
        self._limits = limits
        self._budget = RetryBudget(clock, limits)

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self.once.capabilities

    @property
    def back_at(self) -> float:
        """When the store was last back from an outage, `clock.monotonic()`; minus infinity if never."""
        return self._budget.back_at

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        return await self._repeat(self._call("GET", key), lambda: self.once.get(key))

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""
        return await self._repeat(self._call("HEAD", key), lambda: self.once.head(key))

    async def put(
        self, key: str, body: bytes, condition: Condition, *, ours: Callable[[bytes], bool] | None = None
    ) -> Written | None:
        """Write an object; None if the condition was not met, and nothing of ours stands there.

        Parameters
        ----------
        key, body, condition:
            As in `Store.put`.
        ours:
            Whether a body that was read after a lost reply is, or stands on, what this call
            wrote. By default whether it equals `body`, which needs a nonce in every body.
        """
        call = self._call("PUT", key)
        if isinstance(condition, Always):
            return await self._repeat(call, lambda: self.once.put(key, body, condition), writes=True)
        settle = partial(self._settle, call, key, body, condition, ours or (lambda read: read == body))
        while True:
            try:
                written = await self.once.put(key, body, condition)
            except (Undecided, FenceExpired, StoreError) as error:
                # Not kept in a variable: with its traceback it would keep this frame, and the body.
                found = await settle(_doubt(call, error, condition))
            else:
                self._budget.earn()
                if written is not None or not call.maybe_applied:
                    return written
                unchanged = Undecided("its condition fails, yet nothing has changed", key=key)
                found = await settle(_Doubt(unchanged, read=True))
            if not isinstance(found, Open):
                return found

    async def _settle(
        self,
        call: _Call,
        key: str,
        body: bytes,
        condition: Condition,
        ours: Callable[[bytes], bool],
        doubt: _Doubt,
    ) -> Written | Open | None:
        """Read what has become of a conditional write where that tells; else pause for the next attempt."""
        if doubt.read:
            blob = await self._repeat(call, lambda: self.once.get(key))
            found = judge(blob, body, condition, ours)
            if not isinstance(found, Open):
                return found
        await call.pause(doubt.cause)
        return Open.OPEN

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        call = self._call("DELETE", key)
        try:
            await self._repeat(call, lambda: self.once.delete(key, read_at=read_at), writes=True)
        except FenceExpired as expired:
            if not call.maybe_applied:
                raise
            if await self._repeat(call, lambda: self.once.get(key)) is not None:
                raise call.given_up(expired) from expired

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one request; return the keys that failed."""
        call = self._call("DELETE", f"{len(keys)} keys")
        try:
            return await self._repeat(call, lambda: self.once.delete_many(keys, read_at=read_at), writes=True)
        except FenceExpired as expired:
            if not call.maybe_applied:
                raise
            raise call.given_up(expired) from expired

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        call = self._call("LIST", prefix)
        return await self._repeat(call, lambda: self.once.list(prefix, after=after, limit=limit))

    async def create_bucket(self) -> None:
        """Create the bucket; one that is ours already is no error."""
        await self._repeat(self._call("CREATE", "bucket"), self.once.create_bucket, writes=True)

    async def refuses_old_signatures(self, key: str) -> bool:
        """Read `key` with a signature of an hour ago; whether the store refuses that."""
        return await self._repeat(self._call("GET", key), lambda: self.once.refuses_old_signatures(key))

    async def close(self) -> None:
        """Close the store below."""
        await self.once.close()

    def _call(self, what: str, key: str) -> _Call:
        return _Call(what, key, self._limits, self._clock, self._budget)

    async def _repeat(self, call: _Call, send: Callable[[], Awaitable[T]], *, writes: bool = False) -> T:
        """Send a request that is the same when done twice, until it is answered."""
        while True:
            try:
                answer = await send()
            except Undecided as cause:
                if writes:
                    call.note(cause)
                await call.pause(cause)
            except StoreError as error:
                if not call.maybe_applied:
                    raise
                raise call.given_up(error) from error
            else:
                self._budget.earn()
                return answer
