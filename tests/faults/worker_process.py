"""A worker in a process of its own, whose memory is nobody else's.

It is given, as JSON in its first argument, the arguments of `connect` and a file for its
effects. On SIGTERM it ends and prints its counters and how much memory it held.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import buquet.store.s3
from buquet import connect
from buquet.errors import PermanentError, RetryableError
from buquet.s3.exchange import Limits
from buquet.worker import TaskContext, Worker, WorkerRunOptions

CONCURRENCY = 32
LIMITS = Limits(connect_s=2, read_s=1, total_s=2)
"""Shorter than the default, so that a test has its time-outs soon."""

FIRST_TASKS = 100


def rss() -> int:
    """The memory that this process holds, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def main(effects: str, **arguments: Any) -> None:
    memory: list[int] = []
    done: set[str] = set()
    with Path(effects).open("a", buffering=1) as file:
        async with connect(**arguments, wait_s=30) as queue:
            worker = Worker(queue, "faults", concurrency=CONCURRENCY)

            @worker.task("count")
            async def count(input: dict[str, int], context: TaskContext) -> dict[str, int]:
                if input["n"] % 25 == 7:
                    raise PermanentError("asked for")
                if input["n"] % 10 == 3 and context.attempt == 1:
                    raise RetryableError("the first attempt")
                file.write(f"{context.task_id}\n")
                done.add(context.task_id)
                if len(done) == FIRST_TASKS and not memory:
                    memory.append(rss())
                return input

            await worker.run(WorkerRunOptions(poll_interval_ms=200, shutdown_timeout_s=5))
            memory.append(rss())
    print(json.dumps({"memory": memory}))


if __name__ == "__main__":
    buquet.store.s3.open_store = functools.partial(buquet.store.s3.open_store, limits=LIMITS)
    asyncio.run(main(**json.loads(sys.argv[1])))
