"""The markers a worker has seen: in which order to try them, and which to leave for now.

Example::

    candidates.refill(await finder.look(candidates.is_open), now_ms=store.time.upper_ms())
    seen = candidates.pop()
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from operator import itemgetter

from buquet.clock import Clock
from buquet.protocol.choice import fraction, is_nearest, nearest, patience_s
from buquet.worker.finder import Seen
from buquet.worker.recent import Recent

PATIENT_S = 60.0
"""When a marker was first seen is not known any more after this."""

DELETED_S = 5.0
"""A marker that is deleted may yet stand in a page that was listed before; after this it is forgotten."""

FRESH_S = 0.25
"""From a page that is older than this no task is tried that another worker is nearer to."""

FEW = 16
"""Among more other workers it is not worth computing when a task's own worker comes to it."""

GRACE_S = 1.0
"""For each time that a task has waited so long, and twice as long as our own do, one more worker takes it for
its own: the nearer ones are busy, or away, or handle other types."""

MOST_TAKEN = 4
"""A page of which so many tasks turned out to be taken is out of date."""

_Ready = tuple[int, bool, float, str, Seen]
"""Priority, whether another worker is nearer, the place among its like, the key, and the marker."""


class Candidates:
    """Due markers in the order of this worker's choice.

    Of one priority those come first that no other live session is nearer to. The others' are tried one at a
    time until one of them was to be had, and again once one was taken: they are left over where a worker is
    away or behind, and else being run, whose markers stand for a moment yet.

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
        self._own: list[_Ready] = []
        self._others: list[_Ready] = []
        self._later: list[tuple[float, float, str, float, Seen]] = []
        self._listed_at = -math.inf
        self._own_since = math.inf
        self._taken = 0
        self._rivals: list[str] = []
        self._others_are_free = False
        self._probe: str | None = None
        self._left = Recent()
        self._first_seen = Recent()

    def meet(self, identity: str, sessions: Collection[str]) -> None:
        """Note by which name others know this worker, and the names of all sessions that live."""
        self._identity = identity
        self._rivals = [session for session in sessions if session != identity]
        self.workers = 1 + len(self._rivals)

    def is_open(self, seen: Seen) -> bool:
        """Whether there is any use in trying this marker now."""
        return self.opens_in_s(seen) <= 0

    def opens_in_s(self, seen: Seen) -> float:
        """How long this marker is still to be left alone, seconds; not above 0 if it is open."""
        return self._left.get(seen.key, -math.inf) - self._clock.monotonic()

    def leave(self, key: str, *, for_s: float = math.inf) -> None:
        """Do not try a marker for the next `for_s` seconds."""
        self._left.put(key, self._clock.monotonic() + for_s)

    def forget(self, key: str) -> None:
        """Take note that a marker is deleted."""
        self._first_seen.pop(key, None)
        self.leave(key, for_s=DELETED_S)

    def refill(self, found: Sequence[Seen], *, now_ms: int) -> None:
        """Replace what is there by the open markers of a page just listed; `now_ms` is the store's time."""
        now = self._clock.monotonic()
        self._clear()
        self._listed_at, self._taken, self._probe = now, 0, None
        self._left.forget_up_to(now)
        self._first_seen.forget_up_to(now - PATIENT_S)
        for seen in found:
            share = fraction(self._identity, seen.marker.task_id)
            patience = patience_s(share, workers=self.workers)
            since_due_s = (now_ms - seen.marker.due_ms) / 1000
            first_seen = self._first_seen.get(seen.key)
            if first_seen is None:
                first_seen = now
                self._first_seen.put(seen.key, now)
            waits_since = max(now - since_due_s, first_seen)
            heapq.heappush(self._later, (waits_since + patience, share, seen.key, waits_since, seen))

    def pop(self) -> Seen | None:
        """Return the next marker to try; None if there is none, or none yet."""
        now = self._clock.monotonic()
        self._ripen(now)
        is_doubtful = not self._others_are_free
        if is_doubtful and now - self._listed_at > FRESH_S:
            self._others = []
        self._drop_closed(self._own)
        self._drop_closed(self._others)
        # A probe that is under way holds up the others' tasks, but not our own of a lower priority.
        others = [] if is_doubtful and self._probe is not None else self._others
        heap = min((heap for heap in (self._own, others) if heap), key=itemgetter(0), default=[])
        if not heap:
            return None
        _, is_others, _, key, seen = heapq.heappop(heap)
        if is_others and is_doubtful:
            self._probe = key
        return seen

    def tried(self, key: str, *, is_taken: bool) -> None:
        """Note whether a marker's task turned out to be taken by another worker."""
        is_probe = key == self._probe
        self._probe = None if is_probe else self._probe
        self._others_are_free = not is_taken and (is_probe or self._others_are_free)
        self._taken += is_taken
        if is_taken and self._taken >= MOST_TAKEN:
            self._clear()
        elif is_taken and is_probe:
            self._others = []

    def next_in_s(self) -> float:
        """How long until another marker has waited long enough for this worker, seconds."""
        return max(0.0, self._later[0][0] - self._clock.monotonic()) if self._later else math.inf

    def _ripen(self, now: float) -> None:
        """Sort what has waited long enough into our own and the others'."""
        others, own_since = [], []
        while self._later and self._later[0][0] <= now:
            _, share, key, waits_since, seen = heapq.heappop(self._later)
            if is_nearest(share, seen.marker.task_id, self._rivals):
                heapq.heappush(self._own, (seen.marker.priority, False, share, key, seen))
                own_since.append(waits_since)
            else:
                others.append((share, key, waits_since, seen))
        if own_since:
            self._own_since = sum(own_since) / len(own_since)
        grace_s = max(GRACE_S, 2 * (now - self._own_since))
        for share, key, waits_since, seen in others:
            is_others, place = self._place(share, seen, int((now - waits_since) / grace_s))
            heap = self._others if is_others else self._own
            heapq.heappush(heap, (seen.marker.priority, is_others, place, key, seen))

    def _place(self, share: float, seen: Seen, graces: int) -> tuple[bool, float]:
        """Whether a marker is still left to a worker that is nearer to it, and its place among its like.

        Our own are tried nearest first, of the others', among few, first those to which their own worker
        comes last.
        """
        task_id = seen.marker.task_id
        if graces and is_nearest(share, task_id, self._rivals, but_for=graces):
            return False, share
        return True, share if len(self._rivals) > FEW else -nearest(task_id, self._rivals)

    def _clear(self) -> None:
        self._own, self._others, self._later = [], [], []

    def _drop_closed(self, heap: list[_Ready]) -> None:
        while heap and not self.is_open(heap[0][-1]):
            heapq.heappop(heap)
