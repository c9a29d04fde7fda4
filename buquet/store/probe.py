"""The probe: does this store honour conditional writes, also when they race?

It runs once, before a queue is created, on objects of its own under `probe/`. A store that
fails is refused with what it did and what it should have done: several stores are known to
ignore conditions and answer 200, and some decided them without a lock at first, which only a
concurrent test finds (docs/stores.md).

Example::

    await probe(store, prefix="")       # raises UnfitStore if a queue here would lose tasks
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from buquet.clock import token
from buquet.errors import StoreError, Unavailable, UnfitStore
from buquet.store.interface import Condition, IfAbsent, IfMatches, Undecided, Written
from buquet.store.pace import Paced
from buquet.store.retry import Retrying

VERSION = 1
"""Which set of tests this is; raised when one is added."""

RACERS = 16

RACES = 3
"""How often a race that nobody is known to have won is run again."""

PAUSE_S = 1.0
"""How long before that."""


async def probe(store: Retrying, prefix: str, *, races: bool = True) -> None:
    """Try every kind of condition that the queue relies on, alone and in 16-way races.

    Parameters
    ----------
    store:
        The store to try.
    prefix:
        The queue's prefix.
    races:
        False where the store is known and only the dialect is new: no races, seven requests.

    Raises
    ------
    UnfitStore
        A condition was not honoured; the message says which, and what to do.
    StoreError
        The store refused the requests for another reason (credentials, no such bucket), or
        was too busy to be judged.
    """
    base = f"{prefix}probe/{token(store.time.clock)}"
    alone, raced = _Trial(store, f"{base}-alone"), _Trial(store, f"{base}-raced")
    try:
        await alone.conditions()
        if races:
            await raced.races()
    finally:
        with contextlib.suppress(StoreError):
            await store.delete_many([alone.key, raced.key], read_at=alone.now())


class _Trial:
    """One object, and what the store does to it.

    No write is without a condition: a late one would look like a condition that was ignored.
    """

    def __init__(self, store: Retrying, key: str) -> None:
        self.key = key
        self._store = store
        # Pacing would let the racers start one after the other.
        self._racing = store.once.unpaced if isinstance(store.once, Paced) else store.once

    def now(self) -> float:
        return self._store.time.clock.monotonic()

    # --- one writer ------------------------------------------------------------------------

    async def conditions(self) -> None:
        """Create, create again, replace, and replace what is stale or gone."""
        first = await self._put(IfAbsent(self.now()))
        if first is None:
            raise self._unfit("refused to create an object that did not exist", "create it")
        if await self._put(IfAbsent(self.now())) is not None:
            raise self._unfit("overwrote an object although If-None-Match: * forbade it", "answer 412")
        second = await self._put(IfMatches(first.etag))
        if second is None:
            raise self._unfit(
                "refused an If-Match with the current ETag",
                "accept it (some stores take an ETag without quotes only: BUQUET_DRIVER=ceph sends it so)",
            )
        if await self._put(IfMatches(first.etag)) is not None:
            raise self._unfit("overwrote an object although If-Match named an older ETag", "answer 412")
        await self._store.delete(self.key, read_at=self.now())
        if await self._put(IfMatches(second.etag)) is not None:
            raise self._unfit(
                "created an object although If-Match named one that is gone", "answer 404 or 412"
            )

    async def _put(self, condition: Condition) -> Written | None:
        return await self._store.put(self.key, self._body(), condition)

    # --- many writers ----------------------------------------------------------------------

    async def races(self) -> None:
        """Let writers race to create an object, then to replace it."""
        etag = await self._race("creates", lambda: IfAbsent(self.now()))
        await self._race("If-Match writes", lambda: IfMatches(etag))

    async def _race(self, what: str, condition: Callable[[], Condition]) -> str:
        """Let 16 writers with one condition race; exactly one must win. Return the object's ETag."""
        for _ in range(RACES):
            bodies = [self._body() for _ in range(RACERS)]
            outcomes = await asyncio.gather(*(self._run(body, condition()) for body in bodies))
            blob = await self._store.get(self.key)
            stands = None if blob is None else blob.body
            # A racer that was not told (429, a lost reply) has won if its body stands.
            winners = [
                body
                for body, won in zip(bodies, outcomes, strict=True)
                if won or (won is None and body == stands)
            ]
            if blob is not None and winners == [stands]:
                return blob.etag
            if winners or None not in outcomes:
                raise self._unfit(
                    f"let {len(winners)} of {RACERS} racing {what} succeed", "let exactly one succeed"
                )
            await self._store.time.clock.sleep(PAUSE_S)
        raise Unavailable(f"the store answered none of {RACERS} racing {what}: try again later", key=self.key)

    async def _run(self, body: bytes, condition: Condition) -> bool | None:
        """Make one attempt; return whether it won, None if the store did not say."""
        try:
            return await self._racing.put(self.key, body, condition) is not None
        except Undecided:
            return None

    # --- bits ------------------------------------------------------------------------------

    def _body(self) -> bytes:
        return token(self._store.time.clock).encode()

    def _unfit(self, did: str, should: str) -> UnfitStore:
        return UnfitStore(
            f"this store is not fit for a queue: it {did}; it should {should}. Tasks would be lost or run "
            "twice. docs/stores.md lists stores that work",
            key=self.key,
        )
