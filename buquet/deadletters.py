"""Dead letters: listing failed tasks, requeueing and archiving them (rules 16, 19 and 21).

`Queue` offers these as methods; this is how they work.

Example::

    async for record in failed(ledger): ...
    new = await requeue(ledger, task_id)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from buquet._core.record import Record
from buquet.errors import NewerLayout, PoisonRecord
from buquet.ledger import Ledger, Loaded
from buquet.listing import entries
from buquet.protocol.task import TERMINAL, TaskStatus
from buquet.protocol.transitions import archived, requeued
from buquet.store.interface import Entry, FenceExpired

log = logging.getLogger("buquet")

UNWRITTEN_S = 20 * 60
"""An entry among the failed whose ledger is absent may be written before it for so long."""


async def failed(ledger: Ledger) -> AsyncIterator[Record]:
    """Yield the records of failed tasks, read from the index; drop entries that have had their day.

    An entry is written before the record, so it may be early: it goes only when the ledger is
    archived, ended otherwise, or absent for long.
    """
    async for entry in entries(ledger.store, ledger.keys.all_failed):
        record = await _verified(ledger, entry)
        if record is not None:
            yield record


async def _verified(ledger: Ledger, entry: Entry) -> Record | None:
    try:
        task_id = ledger.keys.parse_failed(entry.key)
        read_at = ledger.clock.monotonic()
        loaded = await ledger.load(task_id)
    except (PoisonRecord, NewerLayout) as error:
        log.debug("%s", error)
        return None
    if loaded is None:
        outlived = ledger.store.time.lower_ms() - entry.modified_ms > UNWRITTEN_S * 1000
    else:
        if loaded.record.status == TaskStatus.Failed:
            return loaded.record
        outlived = loaded.record.status in TERMINAL
    if outlived:
        await ledger.store.delete(entry.key, read_at=read_at)
    return None


async def requeue(ledger: Ledger, task_id: str) -> Record:
    """Submit an ended task's work as a new task, once, and archive the old one (rule 16).

    Raises
    ------
    LookupError
        There is no such task, it was never claimed, or the new one has been removed.
    ValueError
        The task has not ended, or was archived without having been requeued.
    """
    while True:
        loaded = await ledger.load(task_id)
        if loaded is None:
            raise LookupError(f"there is no ended task {task_id}")
        record = loaded.record
        if record.status not in TERMINAL:
            raise ValueError(f"task {task_id} is {record.status}: only a task that has ended can be requeued")
        fresh = requeued(record, at_ms=ledger.store.time.now_ms(), nonce=ledger.mint_nonce())
        if record.requeued_as is None:
            if record.status != TaskStatus.Archived:
                try:
                    await ledger.submit(fresh, minted_at=loaded.read_at)
                except FenceExpired:
                    continue
            elif await ledger.find(fresh.id) is None:
                raise ValueError(f"task {task_id} is archived: submit its work as a new task")
            if not await archive(ledger, loaded, requeued_as=fresh.id):
                continue
        stands = await ledger.find(fresh.id)
        if stands is None and record.requeued_as is not None:
            raise LookupError(f"task {task_id} was requeued as {fresh.id}, which has been removed")
        return fresh if stands is None else stands


async def archive(ledger: Ledger, loaded: Loaded, *, requeued_as: str | None = None) -> bool:
    """Archive an ended task; False if its record has changed meanwhile.

    A task that was requeued from another is archived only after that one is, or the other
    could be requeued once more.
    """
    record = loaded.record
    if record.requeue_of is not None:
        origin = await ledger.load(record.requeue_of)
        if origin is not None and origin.record.requeued_as is None:
            await _write_archived(ledger, origin, requeued_as=record.id)
            return False
    return await _write_archived(ledger, loaded, requeued_as=requeued_as)


async def _write_archived(ledger: Ledger, loaded: Loaded, *, requeued_as: str | None) -> bool:
    nonce = ledger.mint_nonce()
    after = archived(loaded.record, at_ms=ledger.store.time.now_ms(), nonce=nonce, requeued_as=requeued_as)
    return await ledger.replace(after, loaded.etag, nonce) is not None
