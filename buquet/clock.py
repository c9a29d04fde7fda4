"""Time and chance: the one place where the package reads a clock, sleeps or draws a number.

`Clock` is what the machine offers, `StoreClock` the store's time as learned from the `Date`
headers of its responses. Both are passed in, so that a simulation can own them.

Example::

    store_clock = StoreClock(SystemClock())
    sent = clock.monotonic()
    ...                                   # a request, answered with `Date: ...`
    store_clock.observe(date_ms, resolution_ms=1000, sent=sent)
    store_clock.lower_ms()                # the store's time is at least this
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from typing import Protocol

from buquet._core.rfc3339 import format_ms


class Clock(Protocol):
    """What a host offers of time and chance."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; goes on while the machine sleeps, never jumps."""

    def unix(self) -> float:
        """The local wall clock in seconds since 1970; may jump."""

    async def sleep(self, seconds: float) -> None:
        """Pause the calling coroutine."""

    def uniform(self) -> float:
        """A random number in [0, 1), for jitter and back-off."""

    def bits(self, count: int) -> int:
        """`count` random bits that no two processes share, for ids."""


class SystemClock:
    """The clock of this machine and the randomness of its kernel."""

    # On Linux `time.monotonic` stands still while the machine is suspended; a fence that did so
    # would let a day-old decision through. Read dozens of times a task, hence no function around it.
    monotonic = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic
    )
    unix = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Pause the calling coroutine."""
        await asyncio.sleep(seconds)

    def uniform(self) -> float:
        """A pseudo-random number."""
        return random.random()  # noqa: S311 - jitter, not a secret

    def bits(self, count: int) -> int:
        """Bits from the kernel."""
        return int.from_bytes(os.urandom((count + 7) // 8)) >> (-count % 8)


def token(clock: Clock) -> str:
    """Return 128 random bits as 32 hex digits: a nonce, a lease id, an incarnation."""
    return f"{clock.bits(128):032x}"


DRIFT = 100e-6
"""How fast two quartz clocks part, as a fraction; the interval widens by it."""

_DRIFT_MS = DRIFT * 1000
"""In milliseconds a second."""

JUMP_MS = 2000
"""A disagreement above this is a jump of a clock, which needs witnesses."""

WITNESSES = 3
"""How many responses in a row must agree before a jump is believed."""


class StoreClock:
    """The store's time, kept as an interval that narrows with every response.

    A response whose `Date` is D, sent no earlier than `sent` and received now, puts the
    offset (store's time - our monotonic clock) into [D - now, D + resolution - sent].
    Intersecting these intervals turns one-second headers into a sub-second estimate.

    Parameters
    ----------
    clock:
        The host's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._low = clock.unix() * 1000 - clock.monotonic() * 1000
        self._high = self._low
        self._at = clock.monotonic()
        self.synced = False
        """Whether any response of the store has been seen."""
        self._doubts: list[tuple[float, float]] = []

    @property
    def error_ms(self) -> float:
        """Half the width of the interval: the estimate is off by no more than this."""
        return (self._high - self._low) / 2 + (self.clock.monotonic() - self._at) * _DRIFT_MS

    def observe(self, date_ms: int, *, resolution_ms: int = 1000, sent: float) -> None:
        """Learn from one response.

        Parameters
        ----------
        date_ms:
            The response's `Date`, Unix milliseconds.
        resolution_ms:
            The header's step: the true time is in [date_ms, date_ms + resolution_ms).
        sent:
            `clock.monotonic()` just before the request was sent.
        """
        now = self.clock.monotonic()
        low = date_ms - now * 1000
        high = date_ms + resolution_ms - sent * 1000
        if not self.synced:
            self._adopt(low, high, now)
            return
        slack = (now - self._at) * _DRIFT_MS
        both_low, both_high = max(low, self._low - slack), min(high, self._high + slack)
        if both_low <= both_high:
            self._doubts.clear()
            self._adopt(both_low, both_high, now)
        elif both_low - both_high <= JUMP_MS:
            # Servers behind one address disagree a little; the newest word is as good as any.
            self._doubts.clear()
            self._adopt(low, high, now)
        else:
            self._doubt(low, high, now)

    def lower_ms(self) -> int:
        """The store's time is at least this (Unix ms): mint due times from it."""
        now = self.clock.monotonic()
        return int(self._low - (now - self._at) * _DRIFT_MS + now * 1000)

    def upper_ms(self) -> int:
        """The store's time is at most this (Unix ms): test whether something is due with it."""
        now = self.clock.monotonic()
        return int(self._high + (now - self._at) * _DRIFT_MS + now * 1000)

    def now_ms(self) -> int:
        """The best single estimate of the store's time, Unix ms."""
        now = self.clock.monotonic()
        return int((self._low + self._high) / 2 + now * 1000)

    def now(self) -> str:
        """`now_ms` as RFC 3339 text."""
        return format_ms(self.now_ms())

    def _adopt(self, low: float, high: float, now: float) -> None:
        self._low, self._high, self._at, self.synced = low, high, now, True

    def _doubt(self, low: float, high: float, now: float) -> None:
        agrees = all(low <= other_high and other_low <= high for other_low, other_high in self._doubts)
        self._doubts = [*self._doubts, (low, high)] if agrees else [(low, high)]
        if len(self._doubts) >= WITNESSES:
            self._doubts.clear()
            self._adopt(low, high, now)
