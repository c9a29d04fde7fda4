"""Several worker processes under one, and their restart when a file changes.

The children end when their standard input does, so none outlives its supervisor, however that
ends. One that dies by itself is started anew a second later; one that cannot start at all ends
the rest, but not under `--reload`, where the next change may mend it.

Example::

    code = Supervisor(["worker", "tasks:worker", "--processes", "4"], 4, reload=False).run()
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

import click

from buquet.cli.program import INTERRUPTED, NOT_FOUND, STORE, USAGE
from buquet.clock import SystemClock
from buquet.signals import on_stop_signal
from buquet.worker import Worker

LOOK_S = 0.3
"""How often files are looked at."""

RESTART_S = 1.0
"""How long after its death a child is started anew."""

HOPELESS = {USAGE, STORE, NOT_FOUND}
"""Exit codes that a restart does not mend."""

SKIPPED = {"__pycache__", "node_modules", "site-packages"}


class Supervisor:
    """Runs worker processes until they end, or until it is stopped.

    Parameters
    ----------
    arguments:
        The command line of `buquet`, which the children are given too.
    processes:
        How many.
    reload:
        Start them anew when a Python file below the working folder changes.
    """

    def __init__(self, arguments: Sequence[str], processes: int, *, reload: bool) -> None:
        self._arguments = arguments
        self._count = processes
        self._reload = reload
        self._clock = SystemClock()
        self._children: set[Process] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._code = 0

    def run(self) -> int:
        """Run; return the exit code."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        with on_stop_signal(self._stop) as signals:
            watching = asyncio.create_task(self._watch_files()) if self._reload else None
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(self._count):
                        group.create_task(self._keep(number))
            finally:
                if watching is not None:
                    watching.cancel()
        return INTERRUPTED if signal.SIGINT in signals.received else self._code

    def _change(self) -> None:
        """Let all children end that run now; those that are started from now on wait for the next change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _stop(self) -> None:
        self._stopping.set()
        self._change()
        for child in self._children:
            # The second one hands the tasks back at once, in the children too.
            _send(child, signal.SIGTERM)

    async def _keep(self, number: int) -> None:
        """Keep one child running."""
        while not self._stopping.is_set():
            change = self._changed
            code = await self._run_child(change)
            if self._stopping.is_set():
                return
            if code is None:
                continue
            if self._reload:
                click.echo(f"worker {number} ended with {code}: waiting for a change", err=True)
                await change.wait()
            elif code == 0:
                return
            elif code in HOPELESS:
                self._code = code
                self._stop()
            else:
                click.echo(f"worker {number} died ({code}) and is started anew", err=True)
                await self._clock.sleep(RESTART_S)

    async def _run_child(self, change: asyncio.Event) -> int | None:
        """Run a child to its end; return its exit code, None if it was ended for a change."""
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            *("-m", "buquet", *self._arguments, "--supervised"),
            stdin=PIPE,
            start_new_session=True,  # Ctrl-C is for the supervisor
        )
        self._children.add(child)
        if self._stopping.is_set():  # it was not there yet to be told
            _send(child, signal.SIGTERM)
        changed = asyncio.create_task(change.wait())
        ended = asyncio.create_task(child.wait())
        try:
            await asyncio.wait({changed, ended}, return_when=asyncio.FIRST_COMPLETED)
            is_reload = not ended.done() and not self._stopping.is_set()
            if is_reload:  # of a stop it was told, and a second signal would hand its tasks back
                _send(child, signal.SIGTERM)
            code = await ended
            return None if is_reload else code
        finally:
            changed.cancel()
            self._children.discard(child)

    async def _watch_files(self) -> None:
        before = await asyncio.to_thread(_stamps)
        while True:
            await self._clock.sleep(LOOK_S)
            now = await asyncio.to_thread(_stamps)
            if now != before:
                before = now
                click.echo("a file has changed: workers are started anew", err=True)
                self._change()


def _send(child: Process, number: signal.Signals) -> None:
    if child.returncode is None:
        child.send_signal(number)


def _stamps() -> dict[Path, int]:
    """When each Python file below the working folder was last changed."""
    stamps = {}
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                file = Path(folder, name)
                try:
                    stamps[file] = file.stat().st_mtime_ns
                except OSError:
                    continue  # it has just gone
    return stamps


def stop_at_end_of_input(worker: Worker) -> None:
    """Stop a worker when standard input ends, which is when its supervisor does."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(sys.stdin)
        stopping.append(asyncio.ensure_future(worker.stop()))

    stopping: list[asyncio.Future[None]] = []
    loop.add_reader(sys.stdin, ended)
