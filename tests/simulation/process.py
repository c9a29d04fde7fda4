"""Processes in virtual time: one event loop each, stepped by one agenda.

Example::

    agenda = Agenda()
    process = Process(agenda, "w1.1", seed=7)
    process.start(main(process))
    agenda.run(until_s=60)
    process.pause(40); process.crash()
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import inspect
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from buquet.testing.clock import VirtualClock


class Agenda:
    """What happens when, in virtual seconds; things of one moment in the order they were noted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_over = False
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._noted = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do `action` at `when`, or now if that is past."""
        self._noted += 1
        heapq.heappush(self._entries, (max(when, self.now), self._noted, action))

    def run(self, *, until_s: float) -> None:
        """Go on until `stop()`, until `until_s`, or until nothing is left to happen."""
        while self._entries and not self.is_over and self._entries[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._entries)
            action()

    def stop(self) -> None:
        """End `run()` after the present action."""
        self.is_over = True


class _Selector(selectors.SelectSelector):
    """Never waits: an idle loop ends its turn, and says when it wants the next one."""

    loop: ProcessLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.loop.wants_turn_in_s = timeout
            self.loop.stop()
        return []


class ProcessLoop(asyncio.SelectorEventLoop):
    """An event loop on an agenda's time. `run_forever` returns as soon as nothing is ready."""

    def __init__(self, agenda: Agenda) -> None:
        self.wants_turn_in_s: float | None = None
        self.signal_handlers: dict[int, Callable[[], None]] = {}
        self._agenda = agenda
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """The agenda's time."""
        return self._agenda.now

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """There is one thread only."""
        return self.call_soon(callback, *args, context=context)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        """Note the handler; `Process.signal` calls it."""
        self.signal_handlers[sig] = functools.partial(callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Forget the handler."""
        return self.signal_handlers.pop(sig, None) is not None

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        """Refuse: a real thread would not know the virtual time."""
        raise RuntimeError("no threads in virtual time")


class Process:
    """A process: its loop, its clock, and whether it runs.

    Parameters
    ----------
    agenda:
        Gives it its turns.
    name:
        What the trace calls it.
    seed:
        The seed of its chance.
    skew_s:
        How far its wall clock is ahead, in seconds.
    """

    def __init__(self, agenda: Agenda, name: str, *, seed: str, skew_s: float = 0.0) -> None:
        self.name = name
        self.loop = ProcessLoop(agenda)
        self.clock = VirtualClock(self.loop, seed, skew_s=skew_s)  # type: ignore[arg-type]
        self.date_error_ms = 0
        """How far the `Date` of the replies it gets is ahead."""
        self.requests = 0
        self.is_over = False
        """It has crashed or ended."""
        self.error: BaseException | None = None
        """What it died of by itself."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when it has crashed or ended."""
        self.after_turn: Callable[[], None] = lambda: None
        self._agenda = agenda
        self._has_crashed = False
        self._frozen_until = 0.0
        self._next_turn = float("inf")
        self._main: asyncio.Task[None] | None = None
        self.loop.set_exception_handler(self._note_error)

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        """Begin to run."""
        self._main = self.loop.create_task(main)
        self.wake()

    def wake(self) -> None:
        """Give it a turn as soon as it is not paused."""
        self._want_turn(self._agenda.now)

    def pause(self, seconds: float) -> None:
        """Give it no turn for a while. What happens at this very moment still happens."""
        self._frozen_until = max(self._frozen_until, self._agenda.now + seconds)
        self.loop.stop()

    def crash(self) -> None:
        """End it without any clean-up."""
        self._has_crashed = True
        self.loop.stop()
        self.wake()

    def signal(self, number: int) -> None:
        """Deliver a signal; one that has no handler yet ends the process."""
        handler = self.loop.signal_handlers.get(number)
        if handler is None:
            self.crash()
        else:
            self.loop.call_soon(handler)
            self.wake()

    @property
    def has_finished(self) -> bool:
        """Whether it came to its own end."""
        return self.is_over and not self._has_crashed

    @property
    def is_dying(self) -> bool:
        """Whether nothing that it does counts any more."""
        return self.is_over or self._has_crashed

    # --- turns -----------------------------------------------------------------------------

    def _want_turn(self, when: float) -> None:
        if when < self._next_turn:
            self._next_turn = when
            self._agenda.at(when, lambda: self._turn(when))

    def _turn(self, when: float) -> None:
        if when != self._next_turn or self.is_over:
            return  # an earlier turn came between
        self._next_turn = float("inf")
        if self._agenda.now < self._frozen_until and not self._has_crashed:
            self._want_turn(self._frozen_until)
            return
        if not self._has_crashed:
            self.loop.wants_turn_in_s = 0.0
            self.loop.run_forever()
            self.after_turn()
        assert self._main is not None
        if self._has_crashed:
            self._end()
        elif self._main.done():
            self.error = self.error or self._main.exception()
            self._end()
        elif self.loop.wants_turn_in_s is not None:
            self._want_turn(self._agenda.now + self.loop.wants_turn_in_s)

    def _note_error(self, _loop: object, context: dict[str, Any]) -> None:
        if not self.is_over:
            self.error = context.get("exception") or RuntimeError(context["message"])

    def _end(self) -> None:
        self.is_over = True
        self.loop.set_exception_handler(lambda *_: None)
        _unwind(self.loop)
        self.loop.close()
        self.on_end()

    def discard(self) -> None:
        """Free what it holds when the simulation ends."""
        if not self.is_over:
            self.on_end = lambda: None
            self._end()


def _unwind(loop: ProcessLoop) -> None:
    """Close all coroutines of a loop that will never run again.

    What their clean-up starts, or wants to wait for, is closed in its turn. It has no effect: no
    request of a process that is over is sent. Without this the collector would do the same at
    some other time, with a warning for each coroutine that waits in a `finally`.
    """
    asyncio._set_running_loop(loop)  # clean-up may ask for it
    try:
        while tasks := [task for task in asyncio.all_tasks(loop) if _is_open(task.get_coro())]:
            for task in tasks:
                _close(task.get_coro())
    finally:
        asyncio._set_running_loop(None)


def _close(coroutine: Any) -> None:
    """Close a coroutine from the inside out: one that waits again while it is closed stays open."""
    while _is_open(coroutine):
        innermost = coroutine
        while _is_open(innermost.cr_await):
            innermost = innermost.cr_await
        with contextlib.suppress(BaseException):
            innermost.close()


def _is_open(awaited: object) -> bool:
    return inspect.iscoroutine(awaited) and inspect.getcoroutinestate(awaited) != inspect.CORO_CLOSED
