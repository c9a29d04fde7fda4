"""A worker, or a monitor, in a process of its own, for tests of signals, crashes and blocked loops.

It is given, as JSON in its first argument: `where` (the arguments of `connect`), `worker_id`,
`effects` (a file: a line for each attempt that starts), and options of the run. It prints its
counters when it ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from buquet import Monitor, TaskContext, Worker, WorkerRunOptions, connect
from buquet.worker.counters import Counters

SHORT = {"heartbeat_interval_s": 0.5, "session_ttl_s": 2, "monitor_check_interval_s": 0.5}


async def main(where: dict[str, str], worker_id: str, effects: str, **options: Any) -> None:
    async with connect(**where) as queue:
        if options.pop("monitor_alone", False):
            print("started", flush=True)
            await Monitor(queue, worker_id).run(check_interval_s=0.5, session_ttl_s=2)
            print("ended", flush=True)
            return
        worker = Worker(queue, worker_id, concurrency=4)
        with Path(effects).open("a", buffering=1) as file:

            def note(ctx: TaskContext) -> None:
                file.write(f"{worker_id} {ctx.task_id} {ctx.attempt}\n")
                print("started\n", end="", flush=True)

            @worker.task("block")
            async def block(seconds: float, ctx: TaskContext) -> None:
                note(ctx)
                time.sleep(seconds)

            @worker.task("sleep")
            async def sleep(seconds: float, ctx: TaskContext) -> None:
                note(ctx)
                await asyncio.sleep(seconds)

            @worker.task("plain")
            def plain(seconds: float, ctx: TaskContext) -> None:
                note(ctx)
                time.sleep(seconds)

            @worker.task("exit")
            async def leave(_input: None, ctx: TaskContext) -> None:
                note(ctx)
                os._exit(17)

            counters = Counters()

            async def follow() -> None:
                nonlocal counters
                while True:
                    counters = worker.counters  # those of the run, which go on counting
                    await asyncio.sleep(0.05)

            following = asyncio.create_task(follow())
            await worker.run(WorkerRunOptions(**(SHORT | {"poll_interval_ms": 100} | options)))
            following.cancel()
    left = [one.get_name() for one in asyncio.all_tasks() - {asyncio.current_task(), following}]
    left += [one.name for one in threading.enumerate() if one.name.startswith("buquet-heartbeat")]
    print(json.dumps({"counters": asdict(counters), "left": left}))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(main(**json.loads(sys.argv[1])))
