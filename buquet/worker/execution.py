"""One attempt: run a claimed task's handler and say what it came to.

Example::

    execution = Execution(claim, handler, queue)
    outcome = await execution.run()
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from types import TracebackType
from typing import Any

from buquet._core.record import lease_ends_ms
from buquet.errors import PermanentError, PoisonRecord
from buquet.ledger import Claim
from buquet.protocol.task import TaskStatus, input_of, task_of
from buquet.protocol.transitions import Outcome, next_moment_ms, retry_delay_ms, shortened
from buquet.queue import Queue
from buquet.worker.context import TaskContext
from buquet.worker.handlers import Handler, HandlerExit, described

log = logging.getLogger("buquet.worker")

CANCEL_PATIENCE_S = 5.0
"""How long a cancelled handler may clean up before its attempt ends without it."""


class _Released(Exception):  # noqa: N818 - not an error: the worker is stopping
    """The attempt was interrupted because the worker stops."""


class Execution:
    """A claimed task and the handler that runs it.

    Parameters
    ----------
    held:
        The claim.
    handler:
        The handler of its type.
    queue:
        Where time and the size limit come from.
    """

    def __init__(self, held: Claim, handler: Handler, queue: Queue) -> None:
        self.held = held
        self.leftover: asyncio.Future[Any] | None = None
        """A handler that no time-out could stop and that goes on after its attempt."""
        self._handler = handler
        self._queue = queue
        self._is_released = False
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handler has ended, its time is over, or it is to be interrupted."""

    @property
    def is_late(self) -> bool:
        """Whether it took so long to learn of the claim that the lease ends before the time-out would."""
        return self._lease_left_s() < self.held.record.timeout_seconds

    def release(self) -> None:
        """Interrupt the attempt: it comes to a release, unless the handler has just ended."""
        self._is_released = True
        self._end()

    async def run(self) -> Outcome:
        """Run the handler to its end, its time-out or its release."""
        try:
            return await self._run()
        except Exception as error:
            # Ours, not the handler's; but a claim that is never settled would be held for ever.
            log.exception("task %s could not be run", self.held.record.id)
            return self._outcome(
                TaskStatus.Failed, error=shortened(f"it could not be run: {described(error)}")
            )

    async def _run(self) -> Outcome:
        try:
            value, context = self._arguments()
        except PoisonRecord as error:
            return self._failure(error, TaskStatus.Failed)
        try:
            result = await self._call(value, context)
        except _Released:
            return self.released()
        except PermanentError as error:
            return self._failure(error, TaskStatus.Failed)
        except (Exception, asyncio.CancelledError) as error:
            if _is_ours(error):
                raise
            return self._failure(error, TaskStatus.Pending)
        try:
            output = self._queue.to_json(result, "output")
        except Exception as error:  # noqa: BLE001 - an odd object may raise anything when it is looked at
            # What it returned once it would return again: no retry mends that.
            return self._failure(error, TaskStatus.Failed)
        return self._outcome(TaskStatus.Completed, output=output)

    def released(self) -> Outcome:
        """The outcome of an attempt that is handed back: pending at once, no retry spent."""
        return self._outcome(TaskStatus.Pending, counts_as_retry=False)

    def _arguments(self) -> tuple[Any, TaskContext | None]:
        """What the handler is called with; the whole task is only read for one that may ask for it."""
        record = self.held.record
        if not self._handler.takes_context:
            return input_of(record), None
        task = task_of(record)
        assert task.lease_expires_at is not None  # noqa: S101 - a claimed task has a lease
        return task.input, TaskContext(task.id, task.attempt, task, task.lease_expires_at)

    async def _call(self, value: Any, context: TaskContext | None) -> Any:
        record = self.held.record
        limit_s = max(0.0, min(record.timeout_seconds, self._lease_left_s()))
        call = self._handler.start(value, context, name=record.id, on_end=self._end)
        timer = asyncio.get_running_loop().call_later(limit_s, self._end)
        try:
            await self._over
            if call.done():
                return call.result()
            await self._interrupt(call)
            if not self._is_released:
                raise TimeoutError(f"the handler ran longer than {limit_s:g} s")
            if self.leftover is None and not call.cancelled() and call.exception() is None:
                return call.result()
            raise _Released  # what it raised when it was interrupted is no failure of its own
        finally:
            timer.cancel()
            if self.leftover is None:
                call.cancel()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _lease_left_s(self) -> float:
        return (lease_ends_ms(self.held.record) - self._queue.store.time.now_ms()) / 1000

    async def _interrupt(self, call: asyncio.Future[Any]) -> None:
        if self._handler.is_async:
            call.cancel()
            await asyncio.wait({call}, timeout=CANCEL_PATIENCE_S)
        if not call.done():
            self.leftover = call

    def _failure(self, error: BaseException, status: TaskStatus) -> Outcome:
        text = described(error)
        if isinstance(error, HandlerExit):
            text = text.partition(": ")[2]
        trace = _traceback(error)
        retry = status is TaskStatus.Pending
        delay_ms = retry_delay_ms(self.held.record, self._queue.clock.uniform()) if retry else 0
        return self._outcome(status, error=shortened(text), traceback=trace, delay_ms=delay_ms)

    def _outcome(self, status: TaskStatus, **details: Any) -> Outcome:
        at_ms = next_moment_ms(self.held.record, self._queue.store.time.lower_ms())
        return Outcome(status, self._queue.ledger.mint_nonce(), at_ms, **details)


def _traceback(error: BaseException) -> str | None:
    try:
        return "".join(traceback.format_exception(type(error), error, _from_handler(error)))
    except Exception:  # noqa: BLE001 - it prints the error, which may raise anything
        return None


def _is_ours(error: BaseException) -> bool:
    """Whether a cancellation is meant for the worker's own coroutine, not raised by the handler."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _from_handler(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the frames of this package that lead to the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("buquet."):
        trace = trace.tb_next
    return trace
