"""Finding due markers by listing, so that nothing which cannot be claimed hides what can (rule 6).

Example::

    finder = Finder(store, keys, shards)
    found = await finder.look(is_open=lambda seen: seen.key not in skipped)
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from buquet.errors import PoisonRecord
from buquet.protocol.keys import Keys, Marker
from buquet.store.interface import Entry, Page, Store

log = logging.getLogger("buquet.worker")

PAGES_A_LOOK = 4

AFTER_ALL = "~"
"""Sorts after every character of a key."""


class Seen(NamedTuple):
    """A due marker as a listing showed it."""

    key: str
    marker: Marker
    has_body: bool


@dataclass(frozen=True, slots=True)
class _Range:
    """Shards that follow one another, so that one LIST covers them."""

    first: str
    last: str


class Finder:
    """A cursor over the markers of some shards.

    Parameters
    ----------
    store, keys:
        The bucket and its layout.
    shards:
        The full names of the shards to look at, in order.
    """

    def __init__(self, store: Store, keys: Keys, shards: list[str]) -> None:
        self._store = store
        self._keys = keys
        self._ranges = _contiguous(shards, keys.shards())
        self._number = 0
        self._after = self._shard_start(self._ranges[0].first)

    async def look(self, is_open: Callable[[Seen], bool], *, most_pages: int = PAGES_A_LOOK) -> list[Seen]:
        """Return the due markers of the first page that has an open one.

        The cursor survives: the next look goes on where this one got to, and wraps at the end.

        Parameters
        ----------
        is_open:
            Tells whether there is any use in trying a marker.
        most_pages:
            The most LISTs; a whole round, if they are enough, that finds nothing ends the look.

        Raises
        ------
        ForeignKey
            A marker of another layout was listed.
        """
        came_round = self._at_start()
        for _ in range(most_pages):
            page = await self._store.list(self._prefix(), after=self._after)
            shown = self._shown(page)
            now_ms = self._store.time.upper_ms()
            found = [seen for seen in shown if seen.marker.due_ms <= now_ms and is_open(seen)]
            more = page.truncated and page.entries[-1].key < self._shard_end(self._ranges[self._number].last)
            if found:
                self._rotate(found[0], page if more else None)
                break
            if more:
                self._after = self._beyond(page, shown, now_ms)
                continue
            self._move_to((self._number + 1) % len(self._ranges))
            if self._at_start():
                if came_round:
                    break
                came_round = True
        return found

    def _shown(self, page: Page) -> list[Seen]:
        # All are read, so that a key of another layout is met wherever it sorts.
        end = self._shard_end(self._ranges[self._number].last)
        readable = (self._read(entry) for entry in page.entries)
        return [seen for seen in readable if seen is not None and seen.key < end]

    def _read(self, entry: Entry) -> Seen | None:
        try:
            return Seen(entry.key, self._keys.parse_marker(entry.key), has_body=entry.size > 0)
        except PoisonRecord as error:
            log.debug("%s", error)
            return None

    def _beyond(self, page: Page, shown: list[Seen], now_ms: int) -> str:
        """Where to go on after a page without an open marker that is not the last one."""
        last = page.entries[-1].key
        if shown and shown[-1].key == last and shown[-1].marker.due_ms > now_ms:
            # All that follows at this priority is due later still.
            marker = shown[-1].marker
            return f"{self._keys.ready}{marker.shard}/{marker.priority}/{AFTER_ALL}"
        return last

    def _rotate(self, found: Seen, page: Page | None) -> None:
        """Begin the next look at another shard, so that a backlog in one does not starve the rest.

        Every shard is entered at its most urgent marker; `page` is None at the range's end.
        """
        if page is None:
            self._move_to((self._number + 1) % len(self._ranges))
            return
        span = self._ranges[self._number]
        shards = [shard for shard in self._keys.shards() if span.first <= shard <= span.last]
        reached = page.entries[-1].key.removeprefix(self._keys.ready).partition("/")[0]
        if reached <= found.marker.shard:
            following = shards.index(found.marker.shard) + 1
            if following == len(shards):
                self._move_to((self._number + 1) % len(self._ranges))
                return
            reached = shards[following]
        self._after = self._shard_start(reached)

    def _move_to(self, number: int) -> None:
        self._number = number
        self._after = self._shard_start(self._ranges[number].first)

    def _at_start(self) -> bool:
        return self._number == 0 and self._after == self._shard_start(self._ranges[0].first)

    def _prefix(self) -> str:
        span = self._ranges[self._number]
        return self._shard_start(span.first) if span.first == span.last else self._keys.ready

    def _shard_start(self, shard: str) -> str:
        return f"{self._keys.ready}{shard}/"

    def _shard_end(self, shard: str) -> str:
        return f"{self._keys.ready}{shard}/{AFTER_ALL}"


def _contiguous(shards: list[str], every: list[str]) -> list[_Range]:
    """Group shards into runs of neighbours."""
    places = sorted(every.index(shard) for shard in set(shards))
    runs = itertools.groupby(enumerate(places), key=lambda pair: pair[1] - pair[0])
    return [_Range(every[run[0][1]], every[run[-1][1]]) for run in (list(group) for _, group in runs)]
