"""Virtual time: an event loop that never waits, and a clock whose chance comes from a seed.

When nothing is ready to run, a `VirtualLoop` jumps to the next timer. Hours pass in
milliseconds, and one seed gives one trace, as long as the code that runs on it touches
nothing else that varies: no threads, no sockets, no iteration over sets of objects or of
strings (`asyncio.wait` returns such a set).

Errors: `Stuck` when every task waits for something that cannot come any more.

Example::

    async def scenario(clock: VirtualClock) -> float:
        await clock.sleep(3600)
        return clock.monotonic()

    assert run_virtual(scenario, seed=7) == 3600
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded: this is where a simulation's chance comes from
import selectors
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

START = 1_800_000_000.0
"""The wall clock at the start of virtual time, Unix seconds (2027-01-15)."""


class Stuck(RuntimeError):  # noqa: N818 - a state, not a kind of error
    """Nothing is ready, no timer is set: the tasks wait for each other, or for a thread."""


class _Skipping(selectors.SelectSelector):
    """A selector that moves its own time on instead of waiting, and watches nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._skipping.now

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        """Refuse: a real thread would not know the virtual time."""
        raise RuntimeError("no threads in virtual time")


class VirtualClock:
    """A `buquet.clock.Clock` on a `VirtualLoop`.

    A simulation gives each process its own, on one loop: with its own seed, so that its
    chance does not depend on what the others draw, and with its own error of the wall clock.

    Parameters
    ----------
    loop:
        The loop whose time it shows.
    seed:
        The seed of `uniform` and `bits`.
    skew_s:
        How far `unix` is ahead of the true time, in seconds.
    """

    def __init__(self, loop: VirtualLoop, seed: int | str = 0, *, skew_s: float = 0.0) -> None:
        self.loop = loop
        self.skew_s = skew_s
        self._random = random.Random(seed)  # noqa: S311 - a test's chance, to be repeated

    def monotonic(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.loop.time()

    def unix(self) -> float:
        """Virtual Unix seconds, off by `skew_s`."""
        return START + self.skew_s + self.loop.time()

    async def sleep(self, seconds: float) -> None:
        """Pause the calling coroutine for virtual seconds."""
        await asyncio.sleep(seconds)  # noqa: TID251 - on a virtual loop this is virtual

    def uniform(self) -> float:
        """A number in [0, 1) from the seed."""
        return self._random.random()

    def bits(self, count: int) -> int:
        """`count` bits from the seed."""
        return self._random.getrandbits(count)


def run_virtual(main: Callable[[VirtualClock], Coroutine[Any, Any, T]], seed: int | str = 0) -> T:
    """Run a coroutine to its end in virtual time and return its result.

    Parameters
    ----------
    main:
        Makes the coroutine, from the clock that it shall use.
    seed:
        The seed of that clock.

    Raises
    ------
    Stuck
        When nothing that `main` waits for can happen any more.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)  # noqa: S101 - for the type checker
        return runner.run(main(VirtualClock(loop, seed)))
