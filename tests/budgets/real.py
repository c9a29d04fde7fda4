"""Real workers on a SeaweedFS behind a proxy that sees every request, and what their work costs.

Example::

    async with Site(server, log) as site:
        figures = await measure(site)
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from chaos.processes import Fleet
from fault_proxy import FaultProxy, Seen
from servers import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, Server

from budgets.tally import KINDS, Tally
from buquet import Queue, connect
from buquet.store.driver import Operation

SCRIPT = Path(__file__).with_name("worker_process.py")
AT_ONCE = 64
ENDS_WITHIN_S = 60
ACQUAINTED_S = 2.2
"""So long after the last session was created each worker has counted the others."""

DUE_IN = timedelta(seconds=3)
"""Within that time all tasks for a fleet can be submitted, so that they come due at once."""

CLEARED_WITHIN_S = 0.5
"""So long after the last task its marker is deleted; and what is polled meanwhile counts as well."""

AT_FIRST = 5
"""The looks of a worker's start, before it polls once a second."""

IDLE_S = 4.0


class Site:
    """An empty bucket behind a counting proxy.

    Parameters
    ----------
    server:
        The server that holds the bucket.
    log:
        The file of what workers say.
    """

    def __init__(self, server: Server, log: Path) -> None:
        self._server = server
        self._log = log
        self._proxy = FaultProxy(server.endpoint)
        self._end = AsyncExitStack()
        self._connection: dict[str, Any] = {
            "bucket": server.new_bucket(),
            "region": REGION,
            "driver": server.driver,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
        }

    async def __aenter__(self) -> Site:
        await self._end.enter_async_context(self._proxy)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end.aclose()

    async def submit(self, tasks: int) -> Tally:
        """Return what a producer sends for tasks, through the proxy."""
        async with connect(self._proxy.endpoint, prefix="submit/", **self._connection) as queue:
            before = len(self._proxy.seen)
            await _submit(queue, tasks)
            return self._tally(tasks, "submit/", before)

    async def one_worker(self, tasks: int) -> Tally:
        """Return what a worker sends that drains a queue, from its first request to its last."""
        await self._submit_beside(tasks, "one/")
        before = len(self._proxy.seen)
        fleet = await self._start(1, "one/", burst=True)
        await self._until(lambda: self._ended(before) >= tasks)
        await fleet.stop()
        return self._tally(tasks, "one/", before)

    async def many_workers(self, workers: int, tasks: int) -> Tally:
        """Return what workers that know of one another send for tasks that all come due at once."""
        fleet = await self._start(workers, "many/")
        await self._until(lambda: self._sessions("many/") == workers)
        await asyncio.sleep(ACQUAINTED_S)
        before = len(self._proxy.seen)
        await self._submit_beside(tasks, "many/", schedule_at=datetime.now(UTC) + DUE_IN)
        await self._until(lambda: self._ended(before) >= tasks)
        await asyncio.sleep(CLEARED_WITHIN_S)
        tally = self._tally(tasks, "many/", before)
        await fleet.stop()
        return tally

    async def idle_workers(self) -> tuple[Tally, Tally]:
        """Return what a worker on 16 shards, and one on 256, sends a poll while nothing is due."""
        fleets = {
            f"idle{length}/": await self._start(1, f"idle{length}/", length, with_monitor=False)
            for length in (1, 2)
        }
        await self._until(lambda: all(self._looks(prefix) > AT_FIRST for prefix in fleets))
        before = len(self._proxy.seen)
        await asyncio.sleep(IDLE_S)
        first, second = (self._tally(round(IDLE_S) + 1, prefix, before) for prefix in fleets)
        for fleet in fleets.values():
            await fleet.stop()
        return first, second

    # --- bits ------------------------------------------------------------------------------

    async def _start(
        self, workers: int, prefix: str, shard_prefix_len: int | None = None, **options: Any
    ) -> Fleet:
        layout = {"endpoint": self._proxy.endpoint, "prefix": prefix, "shard_prefix_len": shard_prefix_len}
        fleet = Fleet(self._log, script=SCRIPT, options=options, **layout, **self._connection)
        self._end.push_async_callback(fleet.destroy)
        for _ in range(workers):
            await fleet.start()
        return fleet

    async def _submit_beside(self, tasks: int, prefix: str, **arguments: Any) -> None:
        """Submit past the proxy: what that costs is not asked for."""
        async with connect(self._server.endpoint, prefix=prefix, **self._connection) as queue:
            await _submit(queue, tasks, **arguments)

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(ENDS_WITHIN_S):
            while not condition():
                await asyncio.sleep(0.02)

    def _looks(self, prefix: str) -> float:
        return self._tally(1, prefix, 0).a_task("list", about="ready")

    def _sessions(self, prefix: str) -> int:
        created = [seen for seen in self._proxy.seen if seen.request.operation is Operation.CREATE]
        return sum(seen.request.key.startswith(f"{prefix}workers/") for seen in created if seen.status == 200)

    def _ended(self, before: int) -> int:
        """How many ledgers have been written again since they were created."""
        return sum(_is_a_second_write(seen) for seen in self._proxy.seen[before:])

    def _tally(self, tasks: int, prefix: str, before: int) -> Tally:
        sent = [(KINDS[seen.request.operation], seen.request.key) for seen in self._proxy.seen[before:]]
        # A batch of deletions names no key in its address.
        return Tally.of(((kind, key or prefix) for kind, key in sent), tasks, prefix=prefix)


def _is_a_second_write(seen: Seen) -> bool:
    request = seen.request
    return request.operation is Operation.REPLACE and "/tasks/" in request.key and seen.status == 200


async def _submit(queue: Queue, tasks: int, **arguments: Any) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with slots:
            await queue.submit("do", None, **arguments)

    await asyncio.gather(*(one() for _ in range(tasks)))
