"""The storm: what is done to the workers and their server, and the check of what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import servers

from buquet import Queue, RetryPolicy, Task, connect
from chaos.evidence import Evidence
from chaos.processes import Fleet

WORKERS = 4
AT_ONCE = 32

OPTIONS: dict[str, Any] = {
    "heartbeat_interval_s": 2,
    "session_ttl_s": 6,
    "monitor_check_interval_s": 2,
    "poll_interval_ms": 300,
    "shutdown_timeout_s": 1,
}
"""Short lives, so that deaths are noticed within a run."""

TIMEOUT_S = 3
RETRIES = 30
POLICY = RetryPolicy(initial_interval_ms=100, max_interval_ms=1000)

SETTLES_WITHIN_S = 90
"""How long after the last blow everything must have ended and been cleaned up."""


@dataclass(frozen=True)
class Plan:
    """How much, and how rough.

    `outages_s` are how long the server stays down, each time after an equal share of the tasks.
    """

    tasks: int = 2000
    seed: int = 1
    pause_s: tuple[float, float] = (0.4, 1.6)
    outages_s: tuple[float, ...] = (3.0, 15.0)


def inputs(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tasks: mostly short, some longer; some fail or hang at first, some always."""
    chance = random.Random(plan.seed)
    for _ in range(plan.tasks):
        length_s = (
            chance.choice([0.0, 0.02, 0.05, 0.1]) if chance.random() < 0.9 else chance.uniform(0.3, 2.5)
        )
        if chance.random() < 0.15:
            yield "plain", {"length_s": length_s}
            continue
        draw = chance.random()
        yield (
            "coroutine",
            {
                "length_s": length_s,
                "failures": 1 if draw < 0.08 else 0,
                "hangs": draw < 0.02,
                "hopeless": 0.08 <= draw < 0.10,
            },
        )


class Storm:
    """One run of a plan on a server of its own.

    Parameters
    ----------
    plan:
        The plan.
    directory:
        Where the server's data, the log and the effects go.
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._server = servers.SeaweedFS(directory / "server")
        self._effects = directory / "effects"
        self._effects.touch()
        self.log = directory / "workers.log"
        self._outages: list[tuple[float, float]] = []

    async def play(self) -> Evidence:
        """Run it all; raise where something is not as it must be, return what came of it."""
        began = time.time()
        await asyncio.to_thread(self._server.start)
        try:
            connection = {
                "endpoint": self._server.endpoint,
                "bucket": self._server.new_bucket(),
                "region": servers.REGION,
                "access_key_id": servers.ACCESS_KEY_ID,
                "secret_access_key": servers.SECRET_ACCESS_KEY,
            }
            async with connect(**connection) as queue:
                fleet = Fleet(self.log, effects=str(self._effects), options=OPTIONS, **connection)
                try:
                    evidence = await self._play(queue, fleet)
                finally:
                    await fleet.destroy()
        finally:
            await asyncio.to_thread(self._server.stop)
        evidence.took_s = time.time() - began
        return evidence

    async def _play(self, queue: Queue, fleet: Fleet) -> Evidence:
        ids = await self._submit(queue)
        for _ in range(WORKERS):
            await fleet.start()
        await self._rage(fleet, len(ids))
        await fleet.resumed()
        tasks = [await queue.wait(task_id, timeout_s=SETTLES_WITHIN_S) for task_id in ids]
        await self._until_clean(queue, fleet)
        exit_codes = await fleet.stop()
        report = await queue.verify()
        histories = await self._read(queue, ids)
        runs = [line.split() for line in self._effects.read_text().splitlines()]
        evidence = Evidence(fleet.all, self._outages, histories, runs, report)
        assert {task.id for task in tasks} == set(ids)
        # A process may be told to stop before its worker listens.
        listened = {name for _, _, name in runs}
        assert {code for name, code in exit_codes.items() if name in listened} == {0}, exit_codes
        assert await self._keys(queue) == []
        return evidence

    async def _submit(self, queue: Queue) -> list[str]:
        async def one(task_type: str, value: dict[str, Any]) -> str:
            return (await queue.submit(task_type, value, TIMEOUT_S, RETRIES, POLICY)).id

        ids: list[str] = []
        todo = [*inputs(self._plan)]
        for start in range(0, len(todo), AT_ONCE):
            ids += await asyncio.gather(*(one(*task) for task in todo[start : start + AT_ONCE]))
        return ids

    # --- blows -----------------------------------------------------------------------------

    async def _rage(self, fleet: Fleet, tasks: int) -> None:
        """Strike until nine tenths of the tasks have been begun; each outage has its moment."""
        shares = [
            tasks * (n + 1) // (len(self._plan.outages_s) + 2) for n in range(len(self._plan.outages_s))
        ]
        outages = [*zip(shares, self._plan.outages_s, strict=True)]
        while outages or self._begun() < tasks * 0.9:
            await asyncio.sleep(self._chance.uniform(*self._plan.pause_s))
            if outages and self._begun() >= outages[0][0]:
                await self._take_down(fleet, outages.pop(0)[1])
            else:
                await self._strike(fleet)

    async def _strike(self, fleet: Fleet) -> None:
        one = self._chance.choice(fleet.running)
        match self._chance.choice(["kill", "pause", "pause", "tell"]):
            case "kill":
                await fleet.kill(one)
                await fleet.start()
            case "tell":
                fleet.tell_to_stop(one)
                await fleet.start()
            case "pause":
                # Some are over before the session is stale, some outlive it.
                fleet.pause(one, self._chance.choice([1.0, 4.0, 9.0]))

    async def _take_down(self, fleet: Fleet, length_s: float) -> None:
        """Kill the server; meanwhile the blows go on."""
        began = time.time()
        await asyncio.to_thread(self._server.kill)
        while time.time() < began + length_s:
            await asyncio.sleep(self._chance.uniform(*self._plan.pause_s))
            await self._strike(fleet)
        await asyncio.to_thread(self._server.start)
        self._outages.append((began, time.time()))

    def _begun(self) -> int:
        return len({line.split(" ", 1)[0] for line in self._effects.read_text().splitlines()})

    # --- the end ---------------------------------------------------------------------------

    async def _until_clean(self, queue: Queue, fleet: Fleet) -> None:
        """Wait until no marker is left, and no session but those of the processes that run."""
        async with asyncio.timeout(SETTLES_WITHIN_S):
            while True:
                keys = await self._keys(queue)
                names = [key.split(".")[1] for key in keys if key.startswith(queue.keys.sessions)]
                if len(keys) == len(names) and sorted(names) == sorted(one.name for one in fleet.running):
                    return
                await asyncio.sleep(0.5)

    async def _keys(self, queue: Queue) -> list[str]:
        pages = [await queue.store.list(prefix) for prefix in (queue.keys.ready, queue.keys.sessions)]
        return [entry.key for page in pages for entry in page.entries]

    async def _read(self, queue: Queue, ids: list[str]) -> dict[str, list[Task]]:
        histories: dict[str, list[Task]] = {}
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            histories |= zip(some, await asyncio.gather(*map(queue.get_history, some)), strict=True)
        return histories


@contextlib.contextmanager
def told_of(log: Path) -> Iterator[None]:
    """Show the end of the workers' log where something fails."""
    try:
        yield
    except BaseException:
        if log.exists():
            print(*log.read_text(errors="replace").splitlines()[-60:], sep="\n")
        raise
