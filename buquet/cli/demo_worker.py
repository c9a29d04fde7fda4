"""A worker process of the demo.

It runs the demo's tasks and logs each run of its handler to a file outside of the queue. It
works until its standard input ends, so it never outlives the demo, however that ends.

Example::

    S3_ENDPOINT=local:queue.db python -m buquet.cli.demo_worker worker-1 runs.log
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, TextIO

from buquet.cli.loop import run_async
from buquet.connection import connect
from buquet.errors import RetryableError
from buquet.queue import Queue
from buquet.store.retry import Retrying
from buquet.testing.counting import CountingStore
from buquet.worker import TaskContext, Worker

TASK_TYPE = "demo"

TASK_S = 0.1
"""How long a task takes, so that a worker that is killed leaves some unfinished."""


class RunLog:
    """A file to which all workers append lines: event, worker, its requests so far, task.

    A line is one `write` to a file opened for appending, so that no two of them mix and a
    killed process leaves none unfinished.

    Parameters
    ----------
    path:
        The file.
    worker_id:
        Whose lines these are.
    store:
        The store that counts the worker's requests.
    """

    def __init__(self, path: Path, worker_id: str, store: CountingStore) -> None:
        self._file = path.open("ab", buffering=0)
        self._worker_id = worker_id
        self._store = store

    def write(self, event: str, task_id: str = "-") -> None:
        """Append a line."""
        self._file.write(f"{event} {self._worker_id} {self._store.total} {task_id}\n".encode())


async def work(worker_id: str, log_path: Path) -> None:
    """Work on the queue that the environment names until standard input ends."""
    async with connect() as connected:
        store = CountingStore(connected.store.once)
        queue = Queue(Retrying(store, connected.clock), connected.keys)
        worker = Worker(queue, worker_id)
        log = RunLog(log_path, worker_id, store)

        @worker.task(TASK_TYPE)
        async def handle(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:  # noqa: A002
            log.write("started", ctx.task_id)
            await connected.clock.sleep(TASK_S)
            if input["fails_first"] and ctx.attempt == 1:
                log.write("failed", ctx.task_id)
                raise RetryableError("the demo asks for a failure at first")
            log.write("done", ctx.task_id)
            return {"number": input["number"]}

        watching = asyncio.create_task(_stop_at_end_of(sys.stdin, worker))
        try:
            await worker.run()
        finally:
            watching.cancel()
        log.write("stopped")


async def _stop_at_end_of(stream: TextIO, worker: Worker) -> None:
    """Stop the worker when a stream to which nobody writes has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(stream, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(stream)
    await worker.stop()


if __name__ == "__main__":
    run_async(work(sys.argv[1], Path(sys.argv[2])))
