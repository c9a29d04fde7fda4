"""The event loop of every verb: uvloop's where it is installed (`buquet[fast]`).

Example::

    result = run_async(measure(where, load))
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

UVLOOP = "uvloop"


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec(UVLOOP) is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(UVLOOP).new_event_loop
    return factory
