"""Queues and workers in virtual time, for tests that must not wait.

`@virtual` makes a test of a coroutine function whose first parameter is a `World`: a bucket in
memory, of which `world.queue()` opens any number of clients::

    @virtual
    async def test_a_task_waits_its_hour(world: World) -> None:
        queue = world.queue()
        ...
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.memory import MemoryBucket, MemoryStore
from buquet.store.retry import Retrying
from buquet.testing.clock import VirtualClock, run_virtual
from buquet.testing.counting import CountingStore
from buquet.testing.faulty import FaultyStore

LIMIT_S = 12 * 3600
"""No test may take more virtual time: a worker that polls in vain would go on for ever."""


class World:
    """One bucket and the clock of its server and its clients.

    Parameters
    ----------
    clock:
        The clock.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.bucket = MemoryBucket(clock)

    def queue(
        self,
        keys: Keys | None = None,
        plan: Callable[[str, str], Any] = lambda _kind, _key: None,
        clock: VirtualClock | None = None,
        resolution_ms: int = 1,
        **options: Any,
    ) -> Queue:
        """Open a client whose requests meet the faults of `plan`; `requests(queue)` counts them.

        `resolution_ms=1000` gives it a `Date` in whole seconds, as S3 has it.
        """
        clock = clock or self.clock
        faulty = FaultyStore(
            MemoryStore(clock, self.bucket, resolution_ms=resolution_ms), clock, plan, timeout_s=1.0
        )
        return Queue(Retrying(CountingStore(faulty), clock), keys or Keys(), **options)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys in the bucket."""
        return [key for key, _ in self.bucket.list(prefix, "", 1_000_000)[0]]


def requests(queue: Queue) -> CountingStore:
    """Return what counts a queue's requests."""
    counting = queue.store.once  # type: ignore[attr-defined]
    assert isinstance(counting, CountingStore)
    return counting


def virtual(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test that runs `scenario(world, ...)` in virtual time."""

    @functools.wraps(scenario)
    def test(**arguments: Any) -> None:
        async def limited(clock: VirtualClock) -> None:
            async with asyncio.timeout(LIMIT_S):
                await scenario(World(clock), **arguments)

        run_virtual(limited)

    signature = inspect.signature(scenario)
    test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return test
