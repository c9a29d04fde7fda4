"""One run of a worker: find, claim, execute, settle, and stop in good order.

Each slot carries one task from its claim to its outcome. Listing, claims, handlers and
completions of different slots overlap; deletions go out in batches beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict

from buquet.clock import token
from buquet.deletions import Deletions
from buquet.errors import OutcomeUnknown, StoreError, Unavailable
from buquet.heartbeat import Profile, Pulse
from buquet.ledger import Claim
from buquet.protocol.session import MONITOR, WORKER
from buquet.protocol.transitions import Outcome
from buquet.queue import Queue
from buquet.scheduler import Scheduler
from buquet.store.interface import FenceExpired
from buquet.watch import Watch
from buquet.worker.candidates import Candidates
from buquet.worker.claimer import Claimer
from buquet.worker.counters import Counters
from buquet.worker.execution import Execution
from buquet.worker.finder import Finder, Seen
from buquet.worker.handlers import Handler
from buquet.worker.lookout import Lookout
from buquet.worker.options import WorkerRunOptions
from buquet.worker.outage import Outage
from buquet.worker.settler import Settler

log = logging.getLogger("buquet.worker")
stop_log = logging.getLogger("buquet.worker.stop")
"""The command line shows it without `-v`, too: whoever stops a worker wonders what it waits for."""

WAIT_S = 0.05
"""How often it is looked whether tasks may be started again, while none may."""

FLUSH_S = 1.0
"""How often a worker that is alone deletes markers. Of many each one does it more often, since a marker that
stays costs the others a look."""

MOST_OFTEN = 10
"""How much more often at most."""

FIRST_COUNTS_S = (1.0, 1.0, 2.0, 4.0, 8.0)
COUNT_S = 30.0
"""When the live sessions are counted: 1, 2, 4, 8, 16 s after the start, then every 30 s."""

LAST_WORD_S = 10.0
"""How long a stopping worker tries to write the outcomes it still holds."""

UNSETTLED_TASKS = 8
"""Where the store paces writes, this many times `concurrency` tasks may await their outcome."""


class Run:
    """One run of a worker on a queue.

    Parameters
    ----------
    queue:
        The queue.
    worker_id:
        The worker's name.
    handlers:
        Handlers by task type.
    shards:
        The full names of the shards to work on.
    concurrency:
        How many tasks at once.
    options:
        The run's options.
    """

    def __init__(
        self,
        queue: Queue,
        worker_id: str,
        handlers: Mapping[str, Handler],
        shards: list[str],
        concurrency: int,
        options: WorkerRunOptions,
    ) -> None:
        self.counters = Counters()
        """What the run has done so far."""
        self._queue = queue
        self._clock = queue.clock
        self._handlers = handlers
        self._options = options
        self._concurrency = concurrency
        self._write_interval_s = queue.store.capabilities.write_interval_s
        self._outage = Outage(queue.clock)
        self._candidates = Candidates(token(queue.clock), queue.clock)
        self._met = asyncio.Event()
        self._lookout = Lookout(
            queue.store,
            Finder(queue.store, queue.keys, shards),
            self._candidates,
            self._outage,
            counted=self._met,
            slots=concurrency,
            longest_pause_s=options.poll_interval_ms / 1000,
            misses_nothing=options.burst,
        )
        self._deletions = Deletions(queue.store, self._forget_markers)
        self._pulse = Pulse(queue, self._profile(worker_id, shards), self._drop_markers)
        self._claimer = Claimer(
            queue.ledger,
            lambda: self._pulse.me,
            handlers,
            self._candidates,
            self._deletions,
            self.counters,
        )
        self._watch = Watch(queue.ledger, queue.store, self._meet)
        self._held: dict[str, Claim] = {}
        self._settler = Settler(queue.ledger, self._deletions, self.counters, self._outage)
        self._slots = asyncio.Semaphore(concurrency)
        # A paced outcome has given its slot away, yet claims and outcomes share the connections.
        self._requests: contextlib.AbstractAsyncContextManager[None] = (
            asyncio.Semaphore(concurrency) if self._write_interval_s else contextlib.nullcontext()
        )
        # Dicts serve as sets that keep their order: a simulation's run must be the same every time.
        self._work: dict[asyncio.Task[None], None] = {}
        self._executions: dict[Execution, None] = {}
        self._left_to_start = math.inf if options.max_tasks is None else options.max_tasks
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()

    # --- life ------------------------------------------------------------------------------

    async def go(self) -> None:
        """Run until stopped, until `max_tasks`, or in a burst until nothing is due.

        Raises
        ------
        ForeignKey
            The bucket holds keys of another layout.
        StoreError
            The store refuses this worker (credentials, bucket).
        """
        await self._pulse.start()
        dispatch = asyncio.create_task(self._dispatch())
        beside = [self._flush_often(), self._watch_often()]
        if self._options.with_scheduler:
            beside.append(Scheduler(self._queue).keep_firing())
        aside = [asyncio.create_task(one) for one in beside]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            # What runs beside the work ends only by an error, and then so does the run.
            await asyncio.wait({dispatch, stopped, *aside}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._hurrying.set()
            raise
        finally:
            self._stopping.set()
            for task in (dispatch, stopped):
                task.cancel()
            try:
                await asyncio.wait({dispatch, stopped})
            finally:
                await self._end(aside)
        for task in (dispatch, *aside):
            if not task.cancelled():
                task.result()

    def stop(self) -> None:
        """Claim no more and let handlers finish. Called again: hand their tasks back at once."""
        if self._stopping.is_set():
            self._hurrying.set()
        elif self._executions:
            stop_log.info(
                "stopping: %d tasks may go on for up to %g s; a second signal hands them back at once",
                len(self._executions),
                self._options.shutdown_timeout_s,
            )
        self._stopping.set()
        self._pulse.abandon()

    async def _end(self, aside: list[asyncio.Task[None]]) -> None:
        """Finish the work, then what runs beside it, and last the session."""
        try:
            await self._wind_down()
        finally:
            for task in aside:
                task.cancel()
            try:
                await asyncio.wait(aside)
            finally:
                await self._pulse.stop()

    async def _wind_down(self) -> None:
        """Let handlers finish, release those that go on, and write the last outcomes."""
        try:
            if self._work:
                await self._let_finish()
            for execution in self._executions:
                execution.release()
            if self._work:
                await asyncio.wait(self._work, timeout=LAST_WORD_S)
        finally:
            unsettled = list(self._work)
            if unsettled:
                log.error("%d tasks left unsettled; their leases will be taken back", len(unsettled))
            for task in unsettled:
                task.cancel()
        await asyncio.gather(*unsettled, return_exceptions=True)
        await self._deletions.flush()

    async def _let_finish(self) -> None:
        """Wait for the work in flight, but not past `shutdown_timeout_s` nor past a second stop."""
        hurry = asyncio.create_task(self._hurrying.wait())
        settled = asyncio.create_task(asyncio.wait(self._work))
        try:
            await asyncio.wait(
                {hurry, settled},
                timeout=self._options.shutdown_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            hurry.cancel()
            settled.cancel()
            await asyncio.wait({hurry, settled})

    async def _flush_often(self) -> None:
        await self._met.wait()
        while True:
            await self._clock.sleep(FLUSH_S / min(self._candidates.workers, MOST_OFTEN))
            await self._deletions.flush()

    # --- beside the work -------------------------------------------------------------------

    def _profile(self, worker_id: str, shards: list[str]) -> Profile:
        return Profile(
            worker_id=worker_id,
            role=MONITOR if self._options.with_monitor else WORKER,
            interval_s=self._options.heartbeat_interval_s,
            lifetime_s=self._options.session_ttl_s,
            shards=len(shards),
            task_types=sorted(self._handlers),
            describe=lambda: asdict(self.counters),
        )

    def _drop_markers(self, leases: list[str]) -> None:
        """Delete the markers of claims that an acknowledged journal now stands for (rule 13)."""
        now = self._clock.monotonic()
        for lease_id in leases:
            held = self._held.get(lease_id)
            if held is not None:
                self._deletions.add(self._queue.keys.marker_key(held.marker), read_at=now)

    def _forget_markers(self, keys: Collection[str]) -> None:
        self._claimer.forget(keys)

    async def _watch_often(self) -> None:
        """Check the sessions if a monitor is wanted; count them in any case, for rule 7."""
        pauses = itertools.chain(FIRST_COUNTS_S, itertools.repeat(COUNT_S))
        while True:
            try:
                if self._options.with_monitor:
                    await self._watch.check(self._pulse.me.id)
                else:
                    await self._watch.count()
            except StoreError as error:
                log.debug("sessions not checked: %s", error)
            except FenceExpired as error:
                log.debug("%s", error)
            self._met.set()
            pause_s = next(pauses)
            if self._options.with_monitor:
                pause_s = min(pause_s, self._watch.next_check_s(self._options.monitor_check_interval_s))
            await self._clock.sleep(pause_s)

    def _meet(self) -> None:
        self._candidates.meet(self._pulse.me.id, self._watch.live)
        self._met.set()

    # --- finding work ----------------------------------------------------------------------

    async def _dispatch(self) -> None:
        try:
            await self._keep_starting()
        finally:
            await self._lookout.close()

    async def _keep_starting(self) -> None:
        while True:
            await self._slots.acquire()
            may_start = self._may_start()
            seen = await self._lookout.next(idle=not self._work) if may_start else None
            if seen is not None:
                self._start(seen)
                continue
            self._slots.release()
            if self._is_done():
                return
            await (self._lookout.rest() if may_start else self._clock.sleep(WAIT_S))

    def _may_start(self) -> bool:
        if self._stopping.is_set() or not self._pulse.may_claim:
            return False
        return self._left_to_start > 0 and len(self._work) < UNSETTLED_TASKS * self._concurrency

    def _is_done(self) -> bool:
        sated = self._left_to_start <= 0 or (self._options.burst and self._lookout.nothing_due)
        return sated and not self._work

    # --- a slot ----------------------------------------------------------------------------

    def _start(self, seen: Seen) -> None:
        self._left_to_start -= 1
        task = asyncio.create_task(self._fill(_Slot(self._slots), seen))
        self._work[task] = None
        task.add_done_callback(self._work.pop)

    async def _fill(self, slot: _Slot, seen: Seen | None) -> None:
        """Carry one task after the other, for as long as there are some at hand."""
        try:
            while seen is not None:
                await self._carry(seen, slot)
                seen = self._another(slot)
        finally:
            slot.free()

    def _another(self, slot: _Slot) -> Seen | None:
        seen = self._lookout.at_hand() if slot.is_held and self._may_start() else None
        if seen is not None:
            self._left_to_start -= 1
        return seen

    async def _carry(self, seen: Seen, slot: _Slot) -> None:
        """Carry one task from its claim to its outcome."""
        async with self._requests:
            held = await self._claim(seen)
        self._lookout.tried(has_work=held is not None)
        if held is None:
            self._left_to_start += 1
            return
        claimed_at = self._clock.monotonic()
        self._held[held.lease_id] = held
        try:
            outcome = await self._attempt(held, slot)
            if self._write_interval_s:
                wait_s = claimed_at + self._write_interval_s - self._clock.monotonic()
                await self._clock.sleep(max(0.0, wait_s))
            async with self._requests:
                await self._settler.settle(held, outcome)
        finally:
            del self._held[held.lease_id]

    async def _claim(self, seen: Seen) -> Claim | None:
        if not self._pulse.may_claim:  # the session died while the marker waited its turn
            return None
        try:
            return await self._claimer.claim(seen)
        except (Unavailable, OutcomeUnknown) as error:
            self._outage.note(error)
        except StoreError as error:
            log.warning("task %s not claimed: %s", seen.marker.task_id, error)
        return None

    async def _attempt(self, held: Claim, slot: _Slot) -> Outcome:
        execution = Execution(held, self._handlers[held.record.task_type], self._queue)
        if self._stopping.is_set() or execution.is_late:
            return execution.released()
        self._executions[execution] = None
        try:
            outcome = await execution.run()
        finally:
            del self._executions[execution]
        if execution.leftover is not None:
            self.counters.leftover += 1
            slot.keep_until(execution.leftover)
        elif self._write_interval_s:
            # The store makes this outcome wait; the next task need not.
            slot.free()
        return outcome


class _Slot:
    """One of `concurrency` places; freed once."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots: asyncio.Semaphore | None = slots

    @property
    def is_held(self) -> bool:
        """Whether it is neither free again nor kept by a handler that goes on."""
        return self._slots is not None

    def free(self) -> None:
        if self._slots is not None:
            self._slots.release()
            self._slots = None

    def keep_until(self, leftover: asyncio.Future[object]) -> None:
        """Stay taken until a handler that nothing can stop has ended."""
        kept, self._slots = _Slot(self._slots) if self._slots is not None else None, None

        def ended(future: asyncio.Future[object]) -> None:
            if not future.cancelled():
                future.exception()  # nobody else asks for it any more
            if kept is not None:
                kept.free()

        leftover.add_done_callback(ended)
