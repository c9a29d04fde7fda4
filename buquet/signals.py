"""SIGTERM and SIGINT as a request to stop in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary


class Signals:
    """A loop's handlers: it has one a signal, but may run several workers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.received: list[signal.Signals] = []
        """The signals that came, in order."""
        self._stops: list[Callable[[], None]] = []
        self._before: dict[signal.Signals, Any] = {}

    @property
    def count(self) -> int:
        """How many blocks listen."""
        return len(self._stops)

    def add(self, stop: Callable[[], None]) -> None:
        """Let signals call `stop` too."""
        if not self._stops:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.getsignal(number)
                self._loop.add_signal_handler(number, self._stop_all, number)
        self._stops.append(stop)

    def remove(self, stop: Callable[[], None]) -> None:
        """Undo `add`; the last one puts back what was there before the first."""
        self._stops.remove(stop)
        if self._stops:
            return
        for number, handler in self._before.items():
            self._loop.remove_signal_handler(number)
            if handler is not None:  # None: it was not set from Python, and cannot be
                signal.signal(number, handler)
        _listeners.pop(self._loop, None)

    def _stop_all(self, number: signal.Signals) -> None:
        self.received.append(number)
        for stop in list(self._stops):
            stop()


_listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, Signals] = WeakKeyDictionary()


@contextlib.contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[Signals]:
    """Let SIGTERM and SIGINT call `stop` while the block runs (in the main thread only).

    Yields
    ------
    Signals
        What came; shared by all blocks of one loop.
    """
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield Signals(loop)
        return
    listener = _listeners.setdefault(loop, Signals(loop))
    try:
        listener.add(stop)
    except NotImplementedError:  # Windows: Ctrl-C cancels the caller, which ends it just as well
        yield listener
        return
    try:
        yield listener
    finally:
        listener.remove(stop)
