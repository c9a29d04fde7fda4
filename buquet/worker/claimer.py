"""Claiming: what a worker does about a marker it has chosen, and what it remembers of it.

Example::

    held = await claimer.claim(seen)        # None: nothing to run
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Container

from buquet._core.record import lease_ends_ms
from buquet.deletions import Deletions
from buquet.errors import NewerLayout, PoisonRecord
from buquet.incarnation import Incarnation
from buquet.ledger import Attempted, Claim, Garbage, Gone, Ledger, Look, Lost, TakenBack
from buquet.protocol.transitions import LEASE_SLACK_MS, Leave
from buquet.store.interface import FenceExpired
from buquet.worker.candidates import Candidates
from buquet.worker.counters import Counters
from buquet.worker.finder import Seen
from buquet.worker.recent import Recent

log = logging.getLogger("buquet.worker")

LOOK_AGAIN_S = 2.0
"""A task that somebody else has just claimed is looked at again after this, by its ledger."""

DELETED_SOON_S = 30.0
"""A marker that is being deleted is left alone for this long."""

LEDGER_S = 60.0
"""That a task has a ledger is remembered so long beyond when its marker is to be looked at again."""

UNREADABLE_S = 60.0
"""A record that cannot be read is looked at again after this."""

CLAIMS_WEIGHED = 100
CONTENDED = 0.05
"""Above this share of lost claims a worker reads the ledger before it writes (rule 7)."""


class Claimer:
    """Claims tasks for one worker.

    Parameters
    ----------
    ledger:
        The protocol's steps.
    me:
        Returns who claims: the incarnation of the moment.
    handles:
        The task types that have a handler.
    candidates:
        Where it notes which markers to leave alone.
    deletions:
        Where garbage goes.
    counters:
        What it counts.
    """

    def __init__(
        self,
        ledger: Ledger,
        me: Callable[[], Incarnation],
        handles: Container[str],
        candidates: Candidates,
        deletions: Deletions,
        counters: Counters,
    ) -> None:
        self._ledger = ledger
        self._me = me
        self._handles = handles
        self._candidates = candidates
        self._deletions = deletions
        self._counters = counters
        self._has_ledger = Recent()
        self._lost: deque[bool] = deque(maxlen=CLAIMS_WEIGHED)

    async def claim(self, seen: Seen) -> Claim | None:
        """Try to claim; None if there is nothing to run.

        Raises
        ------
        StoreError
            The store did not answer, or refused.
        """
        try:
            attempted = await self._ledger.claim(
                seen.marker,
                has_body=seen.has_body,
                look=self._look(seen),
                owner=self._me(),
                handles=self._handles,
            )
        except (PoisonRecord, NewerLayout) as error:
            log.warning("left alone: %s", error)
            self._candidates.leave(seen.key, for_s=UNREADABLE_S)
            self._candidates.tried(seen.key, is_taken=False)
            if isinstance(error, PoisonRecord):
                await self._ledger.note_poison(seen.marker.task_id, str(error))
            return None
        except FenceExpired:
            return None
        self._candidates.tried(seen.key, is_taken=_is_taken(attempted))
        return self._note(seen, attempted)

    def forget(self, keys: Collection[str]) -> None:
        """Take note that these markers are deleted."""
        for key in keys:
            self._has_ledger.pop(key, None)
            self._candidates.forget(key)

    def _look(self, seen: Seen) -> Look:
        if seen.key in self._has_ledger:
            return Look.LEDGER
        contended = sum(self._lost) > CONTENDED * len(self._lost)
        return Look.BOTH if contended else Look.MARKER

    def _note(self, seen: Seen, attempted: Attempted) -> Claim | None:
        match attempted:
            case Claim():
                self._lost.append(False)
                self._counters.claimed += 1
                # Deleted long before, unless this claim's outcome is never written.
                self._leave_until(seen.key, lease_ends_ms(attempted.record) + LEASE_SLACK_MS)
                return attempted
            case Lost():
                self._lost.append(True)
                self._counters.claims_lost += 1
                self._note_ledger(seen.key, LOOK_AGAIN_S)
            case TakenBack():
                self._counters.taken_back += 1
                log.info("task %s taken back: its lease has ended", seen.marker.task_id)
            case Garbage(read_at=read_at):
                self._deletions.add(seen.key, read_at=read_at)
                self._candidates.leave(seen.key, for_s=DELETED_SOON_S)
            case Gone():
                self._candidates.leave(seen.key, for_s=DELETED_SOON_S)
            case Leave(until_ms=None):
                self._candidates.leave(seen.key)
            case Leave(until_ms=int(until_ms)):
                self._leave_until(seen.key, until_ms)
        return None

    def _leave_until(self, key: str, until_ms: int) -> None:
        """Leave the marker of a task that has a ledger alone until then."""
        wait_s = max((until_ms - self._ledger.store.time.lower_ms()) / 1000, LOOK_AGAIN_S)
        self._candidates.leave(key, for_s=wait_s)
        self._note_ledger(key, wait_s)

    def _note_ledger(self, key: str, wait_s: float) -> None:
        now = self._ledger.clock.monotonic()
        self._has_ledger.put(key, now + wait_s + LEDGER_S)
        self._has_ledger.forget_up_to(now)


def _is_taken(attempted: Attempted) -> bool:
    """Whether another worker turned out to have the task, or to have had it."""
    match attempted:
        case Lost() | Gone() | Garbage() | Leave(until_ms=int()):
            return True
    return False
