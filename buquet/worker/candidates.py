"""The markers a worker has seen: in which order to try them, and which to leave for now.

Example::

    candidates.refill(await finder.look(candidates.is_open), now_ms=store.time.upper_ms())
    seen = candidates.pop()
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from buquet.clock import Clock
from buquet.protocol.choice import fraction, patience_s
from buquet.worker.finder import Seen
from buquet.worker.recent import Recent


class Candidates:
    """Due markers in the order of this worker's choice.

    Parameters
    ----------
    identity:
        What tells this worker from others, so that no two have the same order.
    clock:
        The host's clock.
    """

    def __init__(self, identity: str, clock: Clock) -> None:
        self.workers = 1
        """How many sessions live (W of rule 7)."""
        self._identity = identity
        self._clock = clock
        # By key in the end: the two markers of a retried task share all that stands before it.
        self._ready: list[tuple[int, float, str, Seen]] = []
        self._later: list[tuple[float, int, float, str, Seen]] = []
        self._left = Recent()
        self._first_seen = Recent()

    def is_open(self, seen: Seen) -> bool:
        """Whether there is any use in trying this marker now."""
        return self.opens_in_s(seen) <= 0

    def opens_in_s(self, seen: Seen) -> float:
        """How long this marker is still to be left alone, seconds; not above 0 if it is open."""
        return self._left.get(seen.key, -math.inf) - self._clock.monotonic()

    def leave(self, key: str, *, for_s: float = math.inf) -> None:
        """Do not try a marker for the next `for_s` seconds."""
        self._left.put(key, self._clock.monotonic() + for_s)

    def refill(self, found: Sequence[Seen], *, now_ms: int) -> None:
        """Replace what is there by the open markers of a page just listed; `now_ms` is the store's time."""
        now = self._clock.monotonic()
        self._ready, self._later = [], []
        for seen in found:
            share = fraction(self._identity, seen.marker.task_id)
            patience = patience_s(share, workers=self.workers)
            since_due_s = (now_ms - seen.marker.due_ms) / 1000
            ready_at = max(now - since_due_s, self._first_seen.setdefault(seen.key, now)) + patience
            heapq.heappush(self._later, (ready_at, seen.marker.priority, share, seen.key, seen))

    def pop(self) -> Seen | None:
        """Return the next marker to try; None if there is none, or none yet."""
        now = self._clock.monotonic()
        while self._later and self._later[0][0] <= now:
            heapq.heappush(self._ready, heapq.heappop(self._later)[1:])
        while self._ready:
            seen = heapq.heappop(self._ready)[-1]
            if self.is_open(seen):
                return seen
        return None

    def next_in_s(self) -> float:
        """How long until another marker has waited long enough for this worker, seconds."""
        return max(0.0, self._later[0][0] - self._clock.monotonic()) if self._later else math.inf
