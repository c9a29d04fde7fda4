"""A worker in a process of its own that does nothing, as cheaply as it can.

It is given, as JSON in its first argument, its name, its options and the arguments of `connect`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from buquet import Worker, WorkerRunOptions, connect


async def main(name: str, options: dict[str, Any], **connection: Any) -> None:
    async with connect(**connection) as queue:
        worker = Worker(queue, name)

        @worker.task("do")
        async def do(_input: object) -> None:
            pass

        await worker.run(WorkerRunOptions(**options))


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
