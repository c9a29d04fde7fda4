"""A store that misbehaves as networks and services do, one request at a time.

A `plan` is asked before each request and names the fault, or None. `scripted` makes one from
a list, `at_random` one from odds; both are deterministic, the latter by its clock's seed.

Example::

    store = FaultyStore(MemoryStore(clock), clock, scripted([LostReply(), None]))
    await store.put(key, body, IfAbsent(now))    # is applied, but raises Undecided
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from buquet.errors import BuquetError
from buquet.store.interface import IfAbsent, Undecided, check_fence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from buquet.clock import Clock, StoreClock
    from buquet.store.interface import Blob, Capabilities, Condition, Entry, Page, Store, Written

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lost:
    """The request never arrives."""


@dataclass(frozen=True, slots=True)
class LostReply:
    """The request is served, its reply never arrives."""


@dataclass(frozen=True, slots=True)
class Late:
    """The request is served `delay_s` seconds after the client has given it up.

    Of a real store at most 900: it refuses signatures that are older.
    """

    delay_s: float


@dataclass(frozen=True, slots=True)
class Slow:
    """The request takes `delay_s` seconds to arrive."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Conflict:
    """409: writes raced. A conditional request was not applied, but the client cannot know."""


@dataclass(frozen=True, slots=True)
class Busy:
    """503 or 429: refused before it was looked at."""

    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stale:
    """A listing shows what the same listing showed last time. No effect on other requests."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is answered with this error."""

    error: BuquetError


Fault = Lost | LostReply | Late | Slow | Conflict | Busy | Stale | Refused


def scripted(faults: Iterable[Fault | None]) -> Callable[[str, str], Fault | None]:
    """Return a plan that uses up a list, one element a request, and then has no more faults."""
    rest = iter(faults)
    return lambda _kind, _key: next(rest, None)


def at_random(clock: Clock, odds: Mapping[Fault, float]) -> Callable[[str, str], Fault | None]:
    """Return a plan that draws each fault with its probability; they must sum to at most 1."""

    def draw(_kind: str, _key: str) -> Fault | None:
        chance = clock.uniform()
        for fault, probability in odds.items():
            if chance < probability:
                return fault
            chance -= probability
        return None

    return draw


class FaultyStore:
    """A store between which and its client a plan's faults happen.

    The fence is checked when a request is sent, as where it is signed, not when it is served.

    Parameters
    ----------
    store:
        The store that serves what arrives.
    clock:
        The client's clock.
    plan:
        Asked before each request, with its kind (get, head, put, delete, delete_many, list, create_bucket)
        and key (of a listing the prefix, of a batch delete the first key), for its fault.
    timeout_s:
        How long the client waits for a reply that does not come, in seconds.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        plan: Callable[[str, str], Fault | None],
        *,
        timeout_s: float = 0.0,
    ) -> None:
        self.plan = plan
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._late: set[asyncio.Task[None]] = set()
        self._listed: dict[tuple[str, str, int], Page] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._store.capabilities

    @property
    def time(self) -> StoreClock:
        """The store's time."""
        return self._store.time

    async def settle(self) -> None:
        """Wait until every late request has been served."""
        while self._late:
            await asyncio.wait(self._late)

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        return await self._send(self.plan("get", key), lambda: self._store.get(key))

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""
        return await self._send(self.plan("head", key), lambda: self._store.head(key))

    async def put(
        self, key: str, body: bytes, condition: Condition, *, ours: Callable[[bytes], bool] | None = None
    ) -> Written | None:
        """Write an object; None if the condition was not met."""
        if isinstance(condition, IfAbsent):
            check_fence(self.time, condition.read_at)
            condition = IfAbsent(read_at=None)
        return await self._send(
            self.plan("put", key), lambda: self._store.put(key, body, condition, ours=ours)
        )

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        check_fence(self.time, read_at)
        await self._send(self.plan("delete", key), lambda: self._store.delete(key, read_at=None))

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one request; return the keys that failed."""
        check_fence(self.time, read_at)
        fault = self.plan("delete_many", keys[0] if keys else "")
        return await self._send(fault, lambda: self._store.delete_many(keys, read_at=None))

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        fault = self.plan("list", prefix)
        page = await self._send(fault, lambda: self._store.list(prefix, after=after, limit=limit))
        question = (prefix, after, limit)
        if isinstance(fault, Stale) and question in self._listed:
            return self._listed[question]._replace(date_ms=page.date_ms)
        self._listed[question] = page
        return page

    async def create_bucket(self) -> None:
        """Create the bucket; one that is ours already is no error."""
        await self._send(self.plan("create_bucket", ""), self._store.create_bucket)

    async def refuses_old_signatures(self, key: str) -> bool:
        """Read `key` with a signature of an hour ago; whether the store refuses that. A GET to the plan."""
        return await self._send(self.plan("get", key), lambda: self._store.refuses_old_signatures(key))

    async def close(self) -> None:
        """Close the store below; what is late may still arrive."""
        await self._store.close()

    async def _send(self, fault: Fault | None, serve: Callable[[], Awaitable[T]]) -> T:
        match fault:
            case None | Stale():
                return await serve()
            case Slow(delay_s):
                await self._clock.sleep(delay_s)
                return await serve()
            case Conflict():
                raise Undecided("409 ConditionalRequestConflict", reread=True)
            case Busy(retry_after_s):
                raise Undecided("503 SlowDown", applied=False, retry_after_s=retry_after_s)
            case Refused(error):
                raise copy(error)
            case LostReply():
                await serve()
            case Late(delay_s):
                late = asyncio.ensure_future(self._serve_late(self._timeout_s + delay_s, serve))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
        await self._clock.sleep(self._timeout_s)
        raise Undecided("no reply")

    async def _serve_late(self, delay_s: float, serve: Callable[[], Awaitable[object]]) -> None:
        await self._clock.sleep(delay_s)
        with suppress(BuquetError):  # its reply goes nowhere
            await serve()
