"""How much memory `submit_many` takes, whatever the number of tasks.

Example::

    python bench/submit_many.py                     # a million tasks
    python bench/submit_many.py --tasks 100000 --json

The store takes every object and keeps none, after a turn of the event loop as a network has it; so
what is measured is the client alone. Every thousandth input cannot be stored. Exits with 1 if the
process has ever had `MOST_MIB` or more, or if a result is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from buquet import NewTask, Queue
from buquet.clock import StoreClock, SystemClock
from buquet.protocol.keys import Keys
from buquet.store.interface import Capabilities, Condition, Written
from buquet.store.retry import Retrying

MOST_MIB = 300
REFUSED_EVERY = 1_000


class DiscardingStore:
    """A store that takes every object and keeps none."""

    capabilities = Capabilities(name="discarding")

    def __init__(self, clock: SystemClock) -> None:
        self.time = StoreClock(clock)
        self.puts = 0

    async def put(
        self,
        _key: str,
        _body: bytes,
        _condition: Condition,
        *,
        ours: Callable[[bytes], bool] | None = None,  # noqa: ARG002 - for the retry layer
    ) -> Written:
        await asyncio.sleep(0)
        self.puts += 1
        return Written("discarded")


def new_tasks(count: int) -> Iterator[NewTask]:
    for number in range(count):
        odd: Any = object() if number % REFUSED_EVERY == 0 else None
        yield NewTask("send_email", {"number": number, "to": "user@example.com", "odd": odd})


async def measure(count: int, concurrency: int) -> dict[str, Any]:
    clock = SystemClock()
    store = DiscardingStore(clock)
    queue = Queue(Retrying(store, clock), Keys())  # type: ignore[arg-type]  # it is only ever put to
    began = time.monotonic()
    succeeded = refused = 0
    early_mib = 0.0
    async for submitted in queue.submit_many(new_tasks(count), concurrency=concurrency):
        if submitted.error is None:
            succeeded += 1
        else:
            refused += 1
        if succeeded + refused == count // 10:
            early_mib = _peak_mib()
    seconds = time.monotonic() - began
    return {
        "tasks": count,
        "succeeded": succeeded,
        "refused": refused,
        "stored": store.puts,
        "tasks_per_s": round(count / seconds),
        "early_mib": round(early_mib, 1),
        "peak_mib": round(_peak_mib(), 1),
    }


def _peak_mib() -> float:
    """The most memory that this process has had."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the process that started this one, too
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = asyncio.run(measure(options.tasks, options.concurrency))
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['tasks']:,} tasks, {found['tasks_per_s']:,} a second: "
            f"{found['peak_mib']:.0f} MiB at most, {found['early_mib']:.0f} MiB after a tenth of them"
        )
    is_whole = found["succeeded"] == found["stored"] == options.tasks - found["refused"]
    return 0 if is_whole and found["peak_mib"] < MOST_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
