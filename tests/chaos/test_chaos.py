"""A short storm, and one outage looked at closely. `make chaos` plays a long one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import servers

from buquet import Queue, connect
from chaos.processes import Fleet, One
from chaos.storm import OPTIONS, Plan, Storm, told_of

pytestmark = pytest.mark.server

OUTAGE_S = 24
"""Longer than a request is tried, after which a worker says that it waits."""

WRITTEN_WITHIN_S = 5
MEMORY_GROWTH = 1.1


async def test_a_short_storm_loses_nothing(tmp_path: Path) -> None:
    storm = Storm(Plan(tasks=120, seed=3, pause_s=(0.2, 0.8), outages_s=(1.0, 4.0)), tmp_path)
    with told_of(storm.log):
        evidence = await storm.play()
        evidence.check()
    assert len(evidence.outages) == 2
    assert "Traceback" not in storm.log.read_text()


# --- an outage -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def one_worker(directory: Path) -> AsyncIterator[tuple[servers.SeaweedFS, Queue, Fleet]]:
    server = servers.SeaweedFS(directory / "server")
    server.start()
    try:
        connection = {
            "endpoint": server.endpoint,
            "bucket": server.new_bucket(),
            "region": servers.REGION,
            "access_key_id": servers.ACCESS_KEY_ID,
            "secret_access_key": servers.SECRET_ACCESS_KEY,
        }
        effects = directory / "effects"
        fleet = Fleet(directory / "workers.log", effects=str(effects), options=OPTIONS, **connection)
        async with connect(**connection) as queue:
            try:
                await fleet.start()
                yield server, queue, fleet
            finally:
                await fleet.destroy()
    finally:
        server.stop()


def memory(one: One) -> int:
    """What a process holds, in bytes."""
    statm = Path(f"/proc/{one.process.pid}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def sessions(queue: Queue) -> list[str]:
    return [entry.key for entry in (await queue.store.list(queue.keys.sessions)).entries]


async def test_an_outage_longer_than_a_session_is_sat_out(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as (server, queue, fleet):
        [worker] = fleet.running
        value = {"length_s": 3.0, "failures": 0, "hangs": False, "hopeless": False}
        tasks = [await queue.submit("coroutine", value, timeout_seconds=60) for _ in range(5)]
        effects = tmp_path / "effects"
        while not effects.exists() or effects.read_text().count("\n") < len(tasks):
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)  # so that the leases stand in the journal
        before, held = await sessions(queue), memory(worker)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(OUTAGE_S)
        assert memory(worker) < held * MEMORY_GROWTH
        await asyncio.to_thread(server.start)
        back_at = time.monotonic()
        for task in tasks:
            assert (await queue.wait(task.id, timeout_s=30)).attempt == 1
        assert time.monotonic() - back_at < WRITTEN_WITHIN_S
        await asyncio.sleep(OPTIONS["session_ttl_s"])
        assert await sessions(queue) == before
        assert await fleet.stop() == {worker.name: 0}
        assert (await queue.verify()).findings == []
    assert effects.read_text().count("\n") == len(tasks), "each ran once"
    log = (tmp_path / "workers.log").read_text()
    warnings = re.findall(r"WARNING buquet\.\w+: ([\w ]+)", log)
    assert warnings == ["waiting for the store", "the store is back"], log
