"""The monitor as a process of its own: `Monitor(queue).run()`.

Workers run one inside by default; a separate one suits a fleet whose workers come and go.

Example::

    await Monitor(queue).run(check_interval_s=15)
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from buquet.errors import StoreError
from buquet.heartbeat import Profile, Pulse
from buquet.protocol.session import MONITOR
from buquet.queue import Queue
from buquet.signals import on_stop_signal
from buquet.store.interface import FenceExpired
from buquet.watch import Watch

log = logging.getLogger("buquet.monitor")

MAX_ID_CHARS = 200


class Monitor:
    """Recovers the tasks of dead workers; any number may run.

    Parameters
    ----------
    queue:
        The queue.
    monitor_id:
        A name for people to read, 1 to 200 printable characters; by default made of host and process id.

    Raises
    ------
    ValueError, TypeError
        The name is empty, too long or not printable, or no string.
    """

    def __init__(self, queue: Queue, monitor_id: str | None = None) -> None:
        self._queue = queue
        self._id = _default_id() if monitor_id is None else _checked_id(monitor_id)
        self._stopping = asyncio.Event()
        self._pulse: Pulse | None = None

    async def run(self, *, check_interval_s: float = 15, session_ttl_s: float = 30) -> None:
        """Watch until SIGTERM, SIGINT or `stop()`.

        Parameters
        ----------
        check_interval_s:
            How often to look, seconds; sooner where a session may turn out dead.
        session_ttl_s:
            How long this monitor's own session lives without a heartbeat, seconds.

        Raises
        ------
        StoreError
            The store refuses this monitor.
        ValueError, TypeError
            A number of seconds is out of range or no number.
        """
        _check_seconds("check_interval_s", check_interval_s)
        _check_seconds("session_ttl_s", session_ttl_s)
        profile = Profile(
            worker_id=self._id, role=MONITOR, interval_s=session_ttl_s / 3, lifetime_s=session_ttl_s
        )
        pulse = Pulse(self._queue, profile, on_journaled=lambda _: None)
        watch = Watch(self._queue.ledger, self._queue.store)
        self._stopping.clear()
        self._pulse = pulse
        with on_stop_signal(self.stop):
            await pulse.start()
            try:
                await self._watch_until_stopped(watch, pulse, check_interval_s)
            finally:
                await pulse.stop()

    def stop(self) -> None:
        """Let `run()` end."""
        self._stopping.set()
        if self._pulse is not None:
            self._pulse.abandon()

    async def _watch_until_stopped(self, watch: Watch, pulse: Pulse, check_interval_s: float) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(self._watch(watch, pulse, check_interval_s))
        try:
            await asyncio.wait({stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopping, watching):
                task.cancel()
            await asyncio.wait({stopping, watching})
        if not watching.cancelled():
            watching.result()

    async def _watch(self, watch: Watch, pulse: Pulse, check_interval_s: float) -> None:
        is_away = False
        while True:
            try:
                await watch.check(pulse.me.id)
            except (StoreError, FenceExpired) as error:
                log.log(logging.DEBUG if is_away else logging.WARNING, "sessions not checked: %s", error)
                is_away = True
            else:
                if is_away:
                    log.warning("sessions are checked again")
                is_away = False
            await self._queue.clock.sleep(watch.next_check_s(check_interval_s))


def _default_id() -> str:
    return f"monitor-{socket.gethostname()}-{os.getpid()}"


def _checked_id(monitor_id: str) -> str:
    if not isinstance(monitor_id, str):
        raise TypeError(f"monitor_id must be a string, not {type(monitor_id).__name__}")
    if not monitor_id.strip() or not monitor_id.isprintable() or len(monitor_id) > MAX_ID_CHARS:
        raise ValueError(f"monitor_id must be 1 to {MAX_ID_CHARS} printable characters")
    return monitor_id


def _check_seconds(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not 0.001 <= value <= 1e9:
        raise ValueError(f"{name} must be between 0.001 and 1e9, not {value}")
