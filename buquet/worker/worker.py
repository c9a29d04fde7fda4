"""The worker as an application sees it: register handlers, run.

Example::

    worker = Worker(queue, "worker-1", ["0", "1", "2", "3"])

    @worker.task("send_email")
    async def handle_email(input):
        return {"sent": True, "to": input["to"]}

    await worker.run()
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from buquet.protocol.arguments import check_task_type
from buquet.protocol.keys import expand_shards
from buquet.queue import Queue
from buquet.signals import on_stop_signal
from buquet.worker.counters import Counters
from buquet.worker.handlers import Handler, inside_handler
from buquet.worker.options import WorkerRunOptions
from buquet.worker.run import Run

log = logging.getLogger("buquet.worker")

F = TypeVar("F", bound=Callable[..., Any])

MAX_WORKER_ID_CHARS = 200


class Worker:
    """Runs tasks of a queue with the handlers that are registered on it.

    Parameters
    ----------
    queue:
        The queue; may be left out here and given to `run`.
    worker_id:
        A name for people to read; by default made of host and process id. Two workers may
        share one.
    shards:
        Which shards to work on; a shorter name selects by prefix. All if left out.
    concurrency:
        How many tasks run at once.

    Raises
    ------
    ValueError, TypeError
        An argument makes no sense.
    """

    def __init__(
        self,
        queue: Queue | None = None,
        worker_id: str | None = None,
        shards: Sequence[str] | None = None,
        *,
        concurrency: int = 16,
    ) -> None:
        if isinstance(shards, str):
            raise TypeError('shards must be a list of names such as ["0", "1"], not one string')
        if isinstance(concurrency, bool) or not isinstance(concurrency, int):
            raise TypeError(f"concurrency must be an integer, not {type(concurrency).__name__}")
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        self.queue = queue
        self.worker_id = _default_id() if worker_id is None else _checked_id(worker_id)
        self.shards = None if shards is None else list(shards)
        self.concurrency = concurrency
        self._handlers: dict[str, Handler] = {}
        self._run: Run | None = None
        self._ended = asyncio.Event()

    @property
    def task_types(self) -> list[str]:
        """The task types that have a handler."""
        return sorted(self._handlers)

    @property
    def counters(self) -> Counters:
        """What the run in progress has done so far; all zero between runs."""
        return Counters() if self._run is None else self._run.counters

    def task(self, task_type: str) -> Callable[[F], F]:
        """Register the decorated callable as the handler of a task type; it is returned unchanged.

        It takes `input`, or `input, ctx` (a `TaskContext`), and may be `async def` or plain; a
        plain one runs in a thread.

        Raises
        ------
        ValueError
            The type already has a handler, or is none that `submit` takes.
        TypeError
            The callable takes other arguments, or the decorator was used without a type.
        """
        if not isinstance(task_type, str):
            raise TypeError('write @worker.task("the_type"), with the task type in parentheses')
        check_task_type(task_type)

        def register(function: F) -> F:
            if task_type in self._handlers:
                raise ValueError(f"task type {task_type!r} already has a handler")
            self._handlers[task_type] = Handler(function)
            return function

        return register

    async def run(self, options: WorkerRunOptions | None = None, *, queue: Queue | None = None) -> None:
        """Work until SIGTERM, SIGINT or `stop()`.

        On a stop nothing more is claimed; handlers may finish for `shutdown_timeout_s`, then
        they are cancelled and their tasks handed back without a retry spent. A second signal
        hands them back at once.

        Parameters
        ----------
        options:
            How to run.
        queue:
            The queue, if the worker was made without one.

        Raises
        ------
        ValueError
            No queue, no handler, or no such shard.
        TypeError
            The options are no `WorkerRunOptions`.
        RuntimeError
            The worker is running already.
        ForeignKey
            The bucket holds keys of another layout.
        StoreError
            The store refuses this worker.
        """
        queue = queue or self.queue
        if queue is None:
            raise ValueError("this worker has no queue: pass one to Worker(queue) or to run(queue=...)")
        if not self._handlers:
            raise ValueError('no handler is registered: decorate one with @worker.task("the_type")')
        if self._run is not None:
            raise RuntimeError("this worker is running already")
        if options is not None and not isinstance(options, WorkerRunOptions):
            raise TypeError(f"options must be WorkerRunOptions(...), not {type(options).__name__}")
        every = queue.keys.shards()
        shards = every if self.shards is None else expand_shards(self.shards, queue.keys)
        run = Run(
            queue, self.worker_id, self._handlers, shards, self.concurrency, options or WorkerRunOptions()
        )
        log.info("worker %s handles %s", self.worker_id, ", ".join(self.task_types))
        if len(shards) < len(every):
            log.warning("worker %s covers %d of %d shards", self.worker_id, len(shards), len(every))
        self._run = run
        self._ended = asyncio.Event()  # anew: a module's worker may run in one loop after another
        try:
            with on_stop_signal(run.stop):
                await run.go()
        finally:
            self._run = None
            self._ended.set()
            log.info("worker %s stopped: %s", self.worker_id, run.counters)

    async def stop(self) -> None:
        """Stop `run()` and wait until it has ended (inside a handler: without waiting)."""
        if self._run is None:
            return
        self._run.stop()
        if not inside_handler():
            await self._ended.wait()


def _default_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _checked_id(worker_id: str) -> str:
    if not isinstance(worker_id, str):
        raise TypeError(f"worker_id must be a string, not {type(worker_id).__name__}")
    if not worker_id.strip() or not worker_id.isprintable() or len(worker_id) > MAX_WORKER_ID_CHARS:
        raise ValueError(f"worker_id must be 1 to {MAX_WORKER_ID_CHARS} printable characters")
    return worker_id
