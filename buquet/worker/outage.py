"""Outages of the store in a worker's log: one line when it is away, one when it is back.

Example::

    outage.note(error)      # the worker waits
    outage.end()            # the store has answered
"""

from __future__ import annotations

import logging
import math

from buquet.clock import Clock
from buquet.errors import StoreError

log = logging.getLogger("buquet.worker")

SILENCE_S = 5.0
"""Where something was answered more recently, a request had bad luck, or failed before the store was back."""


class Outage:
    """Whether the store is away, as far as this worker knows.

    Parameters
    ----------
    clock:
        The host's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        self._answered_at = -math.inf

    def note(self, error: StoreError) -> None:
        """Note a request that got no answer however often it was sent."""
        now = self._clock.monotonic()
        if self._since is None and now - self._answered_at > SILENCE_S:
            self._since = now
            log.warning("waiting for the store: %s", error)
        else:
            log.debug("waiting for the store: %s", error)

    def end(self) -> None:
        """Note that the store has answered."""
        self._answered_at = self._clock.monotonic()
        if self._since is not None:
            log.warning("the store is back: waited %.0f s for it", self._answered_at - self._since)
            self._since = None
