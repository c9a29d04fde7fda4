"""The scheduler: submits what schedules ask for, when they ask for it.

Any number may run. Each lists the schedules once an interval and keeps a coroutine for each of
them, which sleeps until the next occurrence, reads its schedule again, and submits. Every
occurrence has one task id, so it does not matter who is first, nor who is killed when.

Example::

    await Scheduler(queue).run(interval_s=60)
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from buquet.errors import NewerLayout, PoisonRecord, StoreError
from buquet.protocol.schedule import next_after
from buquet.queue import Queue
from buquet.signals import on_stop_signal
from buquet.store.interface import FenceExpired

log = logging.getLogger("buquet.scheduler")

DEFAULT_INTERVAL_S = 60.0

ON_TIME_S = 60.0
"""An occurrence that is older than the interval and this was missed."""

RETRY_S = 5.0
"""How long after a failure the store is asked again."""

LONGEST_NAP_S = 60.0
"""After this a sleeper looks at the store's clock again: a local one alone drifts in a month."""

FIRED_AT_ONCE = 32


@dataclass(slots=True)
class _Kept:
    """A schedule that a coroutine takes care of, by the version that it has read last."""

    etag: str
    task: asyncio.Task[None]


class Scheduler:
    """Submits the tasks of recurring schedules; any number may run.

    Parameters
    ----------
    queue:
        The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._schedules = queue.schedules
        self._clock = queue.clock
        self._kept: dict[str, _Kept] = {}
        self._stopping = asyncio.Event()

    async def run(self, interval_s: float = DEFAULT_INTERVAL_S) -> None:
        """Submit what is due until SIGTERM, SIGINT or `stop()`.

        Parameters
        ----------
        interval_s:
            How often to look for new and changed schedules, seconds. Those that it knows fire at
            their time whatever the interval.

        Raises
        ------
        ValueError, TypeError
            The interval makes no sense.
        """
        _check_interval(interval_s)
        self._stopping.clear()
        with on_stop_signal(self._stopping.set):
            stopping = asyncio.create_task(self._stopping.wait())
            keeping = asyncio.create_task(self.keep_firing(interval_s))
            try:
                await asyncio.wait({stopping, keeping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (stopping, keeping):
                    task.cancel()
                await asyncio.wait({stopping, keeping})
            if not keeping.cancelled():
                keeping.result()

    def stop(self) -> None:
        """Let `run()` end."""
        self._stopping.set()

    async def keep_firing(self, interval_s: float = DEFAULT_INTERVAL_S) -> None:
        """Submit what is due until cancelled, beside something else that handles signals."""
        at_once = asyncio.Semaphore(FIRED_AT_ONCE)
        self._kept.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    etags = {entry.key: entry.etag for entry in await self._schedules.entries()}
                except StoreError as error:
                    log.warning("schedules not listed: %s", error)
                    await self._clock.sleep(min(RETRY_S, interval_s))
                    continue
                outdated = [key for key, kept in self._kept.items() if etags.get(key) != kept.etag]
                for key in outdated:
                    self._kept.pop(key).task.cancel()
                for key, etag in etags.items():
                    if key not in self._kept:
                        keeping = group.create_task(self._keep(key, interval_s, at_once))
                        self._kept[key] = _Kept(etag, keeping)
                await self._clock.sleep(interval_s)

    async def _keep(self, key: str, interval_s: float, at_once: asyncio.Semaphore) -> None:
        """Take care of one schedule, until it is gone, disabled or cannot be read."""
        while True:
            try:
                async with at_once:
                    next_ms = await self._fire(key, interval_s)
            except (PoisonRecord, NewerLayout) as error:
                log.warning("left alone until it changes: %s", error)
                return
            except (StoreError, FenceExpired) as error:
                log.warning("%s will be tried again: %s", key, error)
                await self._clock.sleep(RETRY_S)
                continue
            if next_ms is None:
                return
            while (wait_s := (next_ms - self._queue.store.time.now_ms()) / 1000) > 0:
                await self._clock.sleep(min(wait_s, LONGEST_NAP_S))

    async def _fire(self, key: str, interval_s: float) -> int | None:
        """Read a schedule and submit what is due; return its next occurrence, Unix ms, if there is one."""
        loaded = await self._schedules.load_key(key)
        if loaded is None:
            return None
        self._kept[key].etag = loaded.etag
        definition = loaded.definition
        if not definition.enabled:
            return None
        late_ms = int((interval_s + ON_TIME_S) * 1000)
        until_ms = await self._schedules.fire(definition, read_at=loaded.read_at, late_ms=late_ms)
        return next_after(definition, until_ms)


def _check_interval(interval_s: float) -> None:
    if isinstance(interval_s, bool) or not isinstance(interval_s, int | float):
        raise TypeError(f"interval_s must be a number, not {type(interval_s).__name__}")
    if not 0 < interval_s <= 1e9:
        raise ValueError(f"interval_s must be above 0 and at most 1e9, not {interval_s}")
