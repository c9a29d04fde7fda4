"""A worker in a process of its own, for as long as it is let.

It is given, as JSON in its first argument, the arguments of `connect` and its own. Each run of a
handler is a line of the effects file: one `write` to a file opened for appending, so that a killed
process leaves none unfinished.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

from buquet import PermanentError, TaskContext, Worker, WorkerRunOptions, connect

CONCURRENCY = 8
SERVER_STARTS_WITHIN_S = 120
LONG_S = 3600


class Broken(Exception):
    """What a handler raises that fails at first."""


async def main(name: str, effects: str, options: dict[str, Any], **connection: Any) -> None:
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(ctx: TaskContext) -> None:
        os.write(file, f"{ctx.task_id} {ctx.attempt} {name}\n".encode())

    async with connect(wait_s=SERVER_STARTS_WITHIN_S, **connection) as queue:
        worker = Worker(queue, name, concurrency=CONCURRENCY)

        @worker.task("coroutine")
        async def coroutine(input: dict[str, Any], ctx: TaskContext) -> str:
            note(ctx)
            fails_now = ctx.task.retry_count < input["failures"]
            await asyncio.sleep(LONG_S if input["hangs"] and fails_now else input["length_s"])
            if fails_now:
                raise Broken("as it was asked to")
            if input["hopeless"]:
                raise PermanentError("as it was asked to")
            return name

        @worker.task("plain")
        def plain(input: dict[str, Any], ctx: TaskContext) -> str:
            note(ctx)
            time.sleep(input["length_s"])
            return name

        await worker.run(WorkerRunOptions(**options))


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
