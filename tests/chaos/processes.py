"""Worker processes and what was done to each, and when (Unix seconds)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("worker_process.py")
STOPS_WITHIN_S = 60


@dataclass
class One:
    """A worker process."""

    name: str
    process: Process
    killed_at: float | None = None
    told_at: float | None = None
    pauses: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self.killed_at is None and self.told_at is None

    def was_paused(self, since: float, until: float) -> bool:
        return any(began < until and ended > since for began, ended in self.pauses)


class Fleet:
    """All worker processes of a run, those that have ended too.

    Parameters
    ----------
    log:
        The file of what they say.
    script:
        What a process runs.
    arguments:
        What each is given, as keyword arguments of its `main`.
    """

    def __init__(self, log: Path, *, script: Path = SCRIPT, **arguments: Any) -> None:
        self.all: dict[str, One] = {}
        self._log = log
        self._script = script
        self._arguments = arguments
        self._resuming: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> list[One]:
        return [one for one in self.all.values() if one.is_running]

    async def start(self) -> None:
        name = f"w{len(self.all)}"
        arguments = json.dumps({"name": name, **self._arguments})
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(self._script), arguments, stdout=log, stderr=log
            )
        self.all[name] = One(name, process)

    async def kill(self, one: One) -> None:
        one.killed_at = time.time()
        one.process.kill()
        await one.process.wait()

    def tell_to_stop(self, one: One) -> None:
        one.told_at = time.time()
        one.process.terminate()

    def pause(self, one: One, length_s: float) -> None:
        """Stop a process as a machine does that swaps or is suspended; it goes on by itself."""
        now = time.time()
        one.pauses.append((now, now + length_s))
        one.process.send_signal(signal.SIGSTOP)
        resuming = asyncio.create_task(self._resume(one, length_s))
        self._resuming.add(resuming)
        resuming.add_done_callback(self._resuming.discard)

    async def _resume(self, one: One, length_s: float) -> None:
        await asyncio.sleep(length_s)
        if one.process.returncode is None:
            one.process.send_signal(signal.SIGCONT)

    async def resumed(self) -> None:
        """Wait until none is paused any more."""
        while self._resuming:
            await asyncio.wait(self._resuming)

    async def stop(self) -> dict[str, int]:
        """Tell those that run to stop; return the exit codes of all that were ever told to."""
        await self.resumed()
        for one in self.running:
            self.tell_to_stop(one)
        told = [one for one in self.all.values() if one.killed_at is None]
        async with asyncio.timeout(STOPS_WITHIN_S):
            return {one.name: await one.process.wait() for one in told}

    async def destroy(self) -> None:
        """End what is left of it, whatever has happened."""
        for one in self.all.values():
            if one.process.returncode is None:
                one.process.kill()
                await one.process.wait()
