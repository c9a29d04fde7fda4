"""What a worker tries next: a page of due markers at hand, and the next one listed before it is needed.

A page is good for a second, so that urgent tasks are seen. The next one is asked for then, or when
the one at hand runs out; until it is there the slots go on from that, so that no claim waits for a
listing.

Example::

    seen = await lookout.next(idle=not work)        # None: nothing to try for the moment
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from dataclasses import dataclass

from buquet.errors import Unavailable
from buquet.store.interface import Store
from buquet.worker.candidates import Candidates
from buquet.worker.claimer import LOOK_AGAIN_S
from buquet.worker.finder import PAGES_A_LOOK, Finder, Seen
from buquet.worker.outage import Outage

FIRST_PAUSE_S = 0.05
"""How long an idle worker waits from one look to the next at first; doubled up to its longest pause."""

MANY_IN_VAIN = 4
"""After so many tries that came to nothing the next look may come at once: there is a lot to go through."""

PAGE_LIFE_S = 1.0
"""When a page has been listed for so long, the next one is asked for, so that urgent tasks are seen."""

REQUESTS_A_TASK = 3
"""All slots ask for markers at once where handlers are quick, and again after so many requests: for so long
a page is used in spite of its age, while the next one is on its way."""

FEWEST_TRIED = 32
"""No look ahead before so many markers were tried since the last one: it costs a listing."""

WHOLE_ROUND = sys.maxsize
"""How many pages a look may read that must not miss anything."""


COUNTED_WITHIN_S = 2.0
"""So long the first choice waits until it is known how many workers there are."""


@dataclass(frozen=True, slots=True)
class _Page:
    """The due markers of one look, when it ended (`clock.monotonic()`), and how long it took."""

    found: list[Seen]
    at: float
    took_s: float


_NO_PAGE = _Page([], -math.inf, 0.0)


class Lookout:
    """Decides what to try next, and when to look for more.

    Parameters
    ----------
    store:
        Whose time tells what is due.
    finder, candidates:
        Where pages come from, and where one is used.
    outage:
        Where it notes that the store is away.
    counted:
        Set once it is known how many workers there are: nothing is chosen before that.
    slots:
        How many tasks run at once: a page with no more markers than that is running out.
    longest_pause_s:
        How long an idle worker waits from one look to the next at most, seconds.
    misses_nothing:
        An idle worker looks at everything before it takes the queue for empty.
    """

    def __init__(
        self,
        store: Store,
        finder: Finder,
        candidates: Candidates,
        outage: Outage,
        *,
        counted: asyncio.Event,
        slots: int,
        longest_pause_s: float,
        misses_nothing: bool,
    ) -> None:
        self.nothing_due = False
        """Whether the last look found nothing, and no work was in flight that could make more."""
        self._store = store
        self._clock = store.time.clock
        self._finder = finder
        self._candidates = candidates
        self._outage = outage
        self._counted = counted
        self._slots = slots
        self._longest_pause_s = longest_pause_s
        self._pause_s = FIRST_PAUSE_S
        self._look_at = -math.inf
        self._in_vain = 0
        self._news = asyncio.Event()
        self._misses_nothing = misses_nothing
        self._page = _NO_PAGE
        self._used_since = self._clock.monotonic()
        self._tried = 0
        self._few = slots
        self._coming: asyncio.Task[_Page] | None = None
        self._opens_soon = False

    async def next(self, *, idle: bool) -> Seen | None:
        """Return a marker to try, which from now on is left alone; None if there is none for the moment.

        Parameters
        ----------
        idle:
            No work is in flight, which could make more of it where this look has been already.

        Raises
        ------
        ForeignKey, StoreError
            As the listing raises it; a store that is away is none.
        """
        seen = self.at_hand()
        if seen is None and self._clock.monotonic() >= self._look_at:
            await self._turn(idle=idle)
            pause_s = min(self._pause_s, self._longest_pause_s)
            self._look_at, self._pause_s = self._clock.monotonic() + pause_s, 2 * pause_s
            seen = self.at_hand()
        return seen

    def at_hand(self) -> Seen | None:
        """Return a marker to try as `next` does, but only from the page at hand."""
        seen = self._candidates.pop() if self._is_good() else None
        if seen is not None:
            self._candidates.leave(seen.key, for_s=LOOK_AGAIN_S)
            self._tried += 1
            if self._coming is None and self._ends():
                self._coming = asyncio.create_task(self._look(idle=False))
        return seen

    def tried(self, *, has_work: bool) -> None:
        """Take note of what came of a marker: after work the next look may come at once.

        So it may after any try by a worker that ends once there is nothing left.
        """
        self._in_vain += not has_work
        if has_work or self._misses_nothing:
            self._pause_s, self._look_at = FIRST_PAUSE_S, -math.inf
        elif self._in_vain >= MANY_IN_VAIN:
            self._look_at = -math.inf
        self._news.set()

    async def rest(self) -> None:
        """Wait until there may be something to try."""
        self._news.clear()
        wait_s = self._look_at - self._clock.monotonic()
        if self._is_good():
            wait_s = min(wait_s, self._candidates.next_in_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._news.wait()

    async def close(self) -> None:
        """Give up a look that is under way."""
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.gather(self._coming, return_exceptions=True)

    def _is_good(self) -> bool:
        """Whether the page at hand may be used: while it is fresh, or the next one is on its way."""
        has_next = self._coming is not None and self._coming.done()
        return self._late_s() < (0 if has_next else REQUESTS_A_TASK * self._page.took_s)

    def _ends(self) -> bool:
        """Whether the page at hand is old, or has no more markers than may be tried during a look."""
        is_short = self._tried >= max(FEWEST_TRIED, len(self._page.found) - self._few)
        return is_short or self._late_s() >= 0

    def _late_s(self) -> float:
        """For how long the page at hand has been too old, seconds."""
        return self._clock.monotonic() - self._page.at - PAGE_LIFE_S

    async def _turn(self, *, idle: bool) -> None:
        """Turn to the page that is coming; if there is none, or it is too old or used up, to a new one."""
        if self._coming is not None:
            self._use(await self._coming)
            if self._page.found and self._is_good():
                return
        self._coming = asyncio.create_task(self._look(idle=idle))
        self._use(await self._coming)

    def _use(self, page: _Page) -> None:
        self._coming = None
        now = self._clock.monotonic()
        tried_per_s = self._tried / max(now - self._used_since, 0.001)
        self._few = max(self._slots, math.ceil(2 * page.took_s * tried_per_s))
        # Of a page listed ahead the first have been tried from the page before.
        found = [seen for seen in page.found if self._candidates.is_open(seen)]
        self._page, self._used_since = _Page(found, page.at, page.took_s), now
        self._tried = self._in_vain = 0
        self._candidates.refill(found, now_ms=self._store.time.upper_ms())

    async def _look(self, *, idle: bool) -> _Page:
        self.nothing_due = self._opens_soon = False
        began = self._clock.monotonic()
        most_pages = WHOLE_ROUND if idle and self._misses_nothing else PAGES_A_LOOK
        try:
            found = await self._finder.look(self._is_open, most_pages=most_pages)
        except Unavailable as error:
            self._outage.note(error)
            return _NO_PAGE
        self._outage.end()
        self.nothing_due = idle and not found and not self._opens_soon
        now = self._clock.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COUNTED_WITHIN_S):
                await self._counted.wait()
        self._counted.set()
        return _Page(found, now, now - began)

    def _is_open(self, seen: Seen) -> bool:
        opens_in_s = self._candidates.opens_in_s(seen)
        # A due marker that is left for a moment, such as a retry's before its record, is work yet.
        self._opens_soon = self._opens_soon or 0 < opens_in_s <= LOOK_AGAIN_S
        return opens_in_s <= 0
