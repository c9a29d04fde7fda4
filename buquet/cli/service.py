"""What the verbs share that run until they are stopped: signals, logging, what they say at first.

Example::

    log_to_stderr(verbose=True, as_json=False)
    run(where, lambda queue: Monitor(queue).run())
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from buquet.cli import output
from buquet.cli.loop import run_async
from buquet.signals import on_stop_signal

if TYPE_CHECKING:
    from buquet.cli.options import Where
    from buquet.queue import Queue


def run(where: Where, serve: Callable[[Queue], Coroutine[Any, Any, None]]) -> None:
    """Connect and serve until the end or a signal.

    Raises
    ------
    KeyboardInterrupt
        It was stopped, in good order, by Ctrl-C and not by SIGTERM.
    """

    async def connected() -> None:
        serving = asyncio.current_task()
        assert serving is not None  # noqa: S101 - a coroutine that runs has one

        def stop() -> None:
            if signals.count == 1:  # what is served does not listen yet, or no more
                serving.cancel()

        async with where.connect() as queue:
            with on_stop_signal(stop) as signals, contextlib.suppress(asyncio.CancelledError):
                await serve(queue)
        if signal.SIGINT in signals.received:
            raise KeyboardInterrupt

    run_async(connected())


class _Lines(logging.Formatter):
    """One line a record: for people, or JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        message = output.safe(record.getMessage(), 4000)
        if not self._as_json:
            level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            return f"{self.formatTime(record, self.datefmt)} {level}{message}"
        fields = {"level": record.levelname.lower(), "logger": record.name, "message": message}
        return json.dumps({"at": record.created, **fields}, ensure_ascii=False)


def log_to_stderr(*, verbose: bool, as_json: bool) -> None:
    """Show what the library logs: warnings, what a stop waits for, with `verbose` a line for each task."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(as_json=as_json))
    logger = logging.getLogger("buquet")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("buquet.worker.stop").setLevel(logging.INFO)


def announce(facts: dict[str, Any], *, as_json: bool) -> None:
    """Say at first what runs, and where."""
    if as_json:
        output.emit({"event": "started", **facts})
        return
    for name, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        click.echo(f"{name.replace('_', ' '):<12} {output.safe(shown, 2000)}")
