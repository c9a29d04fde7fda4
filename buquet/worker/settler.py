"""Settling: writing what an attempt came to, for as long as it takes to know that it stands.

Example::

    await settler.settle(held, outcome)
"""

from __future__ import annotations

import logging
from dataclasses import replace

from buquet._core.record import Record
from buquet.deletions import Deletions
from buquet.errors import NewerLayout, OutcomeUnknown, PoisonRecord, StoreError, Unavailable
from buquet.ledger import Claim, Ledger
from buquet.protocol.task import TaskStatus
from buquet.protocol.transitions import Outcome, shortened, void_at_ms
from buquet.worker.counters import Counters
from buquet.worker.outage import Outage

log = logging.getLogger("buquet.worker")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0


TOO_LARGE = "EntityTooLarge"
"""S3's code, with 400, for a body that it takes from nobody; a proxy before it answers 413."""


class Settler:
    """Writes outcomes for one worker.

    Parameters
    ----------
    ledger:
        The protocol's steps.
    deletions:
        Where the claim's marker goes once it has served.
    counters:
        What it counts.
    outage:
        Where it notes that the store is away.
    """

    def __init__(self, ledger: Ledger, deletions: Deletions, counters: Counters, outage: Outage) -> None:
        self._ledger = ledger
        self._deletions = deletions
        self._counters = counters
        self._outage = outage

    async def settle(self, held: Claim, outcome: Outcome) -> None:
        """Write an outcome. Returns when it is known to stand, or known to be void.

        While the store is away it tries on: an outcome is only dropped when another owns the task.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                record = await self._ledger.settle(held, outcome)
            except NewerLayout as error:
                # Not settled as far as we can tell: the journal entry stays (rule 20).
                log.error("outcome dropped: %s", error)  # noqa: TRY400 - the message says it all
                return
            except PoisonRecord as error:
                log.error("outcome dropped: %s", error)  # noqa: TRY400
                held.owner.leave(held.lease_id)
                return
            except (Unavailable, OutcomeUnknown) as error:
                self._outage.note(error)
            except StoreError as error:
                if outcome.output is not None and (error.status == 413 or error.code == TOO_LARGE):
                    outcome = replace(
                        outcome,
                        status=TaskStatus.Failed,
                        output=None,
                        error=shortened(f"the store refused the output: {error}"),
                    )
                    continue
                if await self._is_lost(held):
                    held.owner.leave(held.lease_id)
                    self._note(held, outcome, None)
                    return
                level = logging.WARNING if pause_s == FIRST_PAUSE_S else logging.DEBUG
                log.log(level, "task %s: outcome not yet written: %s", held.record.id, error)
            else:
                self._outage.end()
                held.owner.leave(held.lease_id)
                self._note(held, outcome, record)
                return
            await self._ledger.clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _is_lost(self, held: Claim) -> bool:
        """Whether the lease is over and the task has gone on without us."""
        if self._ledger.store.time.lower_ms() <= void_at_ms(held.record):
            return False
        try:
            loaded = await self._ledger.load(held.record.id)
        except (StoreError, PoisonRecord, NewerLayout):
            return False
        return loaded is None or loaded.record.lease_id != held.lease_id

    def _note(self, held: Claim, outcome: Outcome, record: Record | None) -> None:
        if record is None:
            self._counters.lease_lost += 1
            log.warning("task %s: lease lost, outcome %s dropped", held.record.id, outcome.status)
            return
        if outcome.traceback is not None:
            log.debug("task %s (%s): %s", record.id, record.task_type, outcome.traceback)
        # The claim's marker can never become valid again: the attempt has grown since.
        key = self._ledger.keys.marker_key(held.marker)
        self._deletions.add(key, read_at=self._ledger.clock.monotonic())
        if record.status == TaskStatus.Completed:
            self._counters.completed += 1
            log.info("task %s (%s) completed", record.id, record.task_type)
        elif record.status != TaskStatus.Pending:
            self._counters.failed += 1
            log.warning("task %s (%s) failed: %s", record.id, record.task_type, record.last_error)
        elif outcome.counts_as_retry:
            self._counters.retried += 1
            log.info("task %s (%s) will be retried: %s", record.id, record.task_type, record.last_error)
        else:
            self._counters.released += 1
