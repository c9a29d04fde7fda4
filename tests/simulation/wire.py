"""What lies between a process and the bucket: time, and the faults of a plan.

`Network` carries requests to the one `MemoryBucket`; a `Wire` is a process's client of it, a
`Store` that makes single attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buquet.clock import StoreClock
from buquet.store.interface import (
    Blob,
    Capabilities,
    Condition,
    Entry,
    IfAbsent,
    IfMatches,
    Page,
    Undecided,
    Written,
    check_fence,
)
from buquet.store.memory import MemoryBucket
from simulation import faults
from simulation.faults import Fault, Plan, kind_of
from simulation.oracle import Oracle
from simulation.process import Agenda, Process

SHORTEST_TRIP_S, LONGEST_TRIP_S = 0.001, 0.05


@dataclass(frozen=True, slots=True)
class Request:
    """One request on its way. `row` is its kind, `number` counts its process's requests."""

    process: Process
    number: int
    row: str
    key: str
    keys: tuple[str, ...] = ()
    body: bytes = b""
    condition: Condition | None = None
    after: str = ""
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the bucket answered, when (Unix ms); or why nothing is known."""

    value: Any = None
    date_ms: int = 0
    error: Undecided | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """No request is served between these moments, in virtual seconds."""

    start_s: float
    end_s: float

    def __str__(self) -> str:
        return f"outage of the store from {self.start_s:.0f} s to {self.end_s:.0f} s"


class Network:
    """Carries requests to the bucket and replies back.

    Parameters
    ----------
    agenda, bucket, plan, oracle:
        The parts of the world.
    outages:
        When the store is away.
    resolution_ms:
        The step of `Date` and `LastModified`.
    max_keys:
        The page size of a LIST.
    """

    def __init__(
        self,
        agenda: Agenda,
        bucket: MemoryBucket,
        plan: Plan,
        oracle: Oracle,
        *,
        outages: Sequence[Outage],
        resolution_ms: int,
        max_keys: int,
    ) -> None:
        self.requests = 0
        self.late = 0
        """How many late writes are still to come."""
        self.resolution_ms = resolution_ms
        self.capabilities = Capabilities(name="simulated", max_keys=max_keys)
        self.plan = plan
        self._agenda = agenda
        self._bucket = bucket
        self._oracle = oracle
        self._outages = outages
        self._listed: dict[tuple[str, str, int], Any] = {}

    async def send(self, request: Request, *, sign: Callable[[], None] = lambda: None) -> Reply:
        """Carry one request of the running process; `sign` checks that it may still be sent."""
        process = request.process
        at = (process.name, request.number)
        chances = self.plan.chances(*at)
        fault = self.plan.draw(at, request.row, chances, now=self._agenda.now)
        if abs(process.date_error_ms) >= 1500:
            self.plan.table[request.row, faults.CLOCK] += 1
        if fault is not None and fault.what == faults.STALE:
            fault = fault if (request.key, request.after, request.limit) in self._listed else None
        if fault is not None:
            self.plan.happens(fault, request.row)
            self._oracle.note(f"{process.name} {request.row} {request.key}: {fault}")
        if fault is not None and fault.what in {faults.PAUSE, faults.CRASH} and not fault.after:
            await self._stun(process, fault)
            fault = None
        sign()
        reply = process.loop.create_future()
        self._dispatch(request, fault, chances, reply)
        if fault is not None and fault.what in {faults.PAUSE, faults.CRASH}:
            await self._stun(process, fault)
        return await reply  # type: ignore[no-any-return]

    async def _stun(self, process: Process, fault: Fault) -> None:
        if fault.what == faults.PAUSE:
            process.pause(fault.seconds)
            await asyncio.sleep(0)
        else:
            process.crash()
            await process.loop.create_future()

    def _dispatch(
        self, request: Request, fault: Fault | None, chances: Sequence[float], reply: asyncio.Future[Reply]
    ) -> None:
        agenda = self._agenda
        there, back = (SHORTEST_TRIP_S * (LONGEST_TRIP_S / SHORTEST_TRIP_S) ** c for c in chances[3:5])
        arrival = agenda.now + there
        self.requests += 1

        def deliver(answer: Reply, when: float) -> None:
            agenda.at(when, lambda: self._deliver(request, answer, reply))

        def serve() -> None:
            deliver(self._serve(request), agenda.now + back)

        def serve_late() -> None:
            self.late -= 1
            self._serve(request)

        no_reply = Reply(error=Undecided("no reply", key=request.key))
        match fault and fault.what:
            case faults.LOST:
                deliver(no_reply, arrival + fault.seconds)
            case faults.LOST_REPLY:
                agenda.at(arrival, lambda: self._serve(request))
                deliver(no_reply, arrival + fault.seconds)
            case faults.LATE:
                self.late += 1
                deliver(no_reply, arrival + chances[2] * 5)
                agenda.at(arrival + fault.seconds, serve_late)
            case faults.CONFLICT:
                reread = isinstance(request.condition, IfMatches)
                conflict = Undecided("409 ConditionalRequestConflict", reread=reread, key=request.key)
                deliver(Reply(error=conflict), arrival + back)
            case faults.BUSY:
                deliver(_busy(request, refused=chances[2] < 0.5), arrival + back)
            case faults.STALE:
                deliver(self._stale(request), arrival + back)
            case faults.SLOW:
                agenda.at(arrival + fault.seconds, serve)
            case _:
                agenda.at(arrival, serve)

    def _deliver(self, request: Request, answer: Reply, reply: asyncio.Future[Reply]) -> None:
        process = request.process
        if process.is_dying:
            return

        def arrive() -> None:
            if not reply.done():
                reply.set_result(answer)

        process.loop.call_soon(arrive)
        process.wake()

    # --- the server --------------------------------------------------------------------------

    def _serve(self, request: Request) -> Reply:
        """Apply one request, atomically; during an outage answer that nothing was done."""
        now = self._agenda.now
        if any(outage.start_s <= now < outage.end_s for outage in self._outages):
            return _busy(request, refused=False)
        match request.row.partition(" ")[0]:
            case "GET":
                value: Any = self._bucket.get(request.key)
            case "LIST":
                value = self._bucket.list(request.key, request.after, request.limit)
                self._listed[request.key, request.after, request.limit] = value
            case "PUT":
                assert request.condition is not None
                value = self._bucket.put(request.key, request.body, request.condition)
                self._oracle.answered(request, is_applied=value is not None)
            case _:
                for key in request.keys:
                    self._bucket.delete(key)
                value = []
                self._oracle.deleted(request)
        return Reply(value, self._date_ms(request))

    def _stale(self, request: Request) -> Reply:
        return Reply(self._listed[request.key, request.after, request.limit], self._date_ms(request))

    def _date_ms(self, request: Request) -> int:
        return self.truncated(self._bucket.now_ms() + request.process.date_error_ms)

    def truncated(self, moment_ms: int) -> int:
        """A moment as the headers spell it."""
        return moment_ms - moment_ms % self.resolution_ms


def _busy(request: Request, *, refused: bool) -> Reply:
    error = Undecided("429" if refused else "503", applied=False if refused else None, key=request.key)
    return Reply(error=error)


class Wire:
    """One process's client of the bucket: a `Store` that makes single attempts.

    Parameters
    ----------
    process:
        Whose client it is.
    network:
        What carries its requests.
    """

    def __init__(self, process: Process, network: Network) -> None:
        self.time = StoreClock(process.clock)
        self.capabilities = network.capabilities
        self._process = process
        self._network = network

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        self._network._oracle.reads(self._process, key)
        found, date_ms = await self._send(kind_of("GET", key), key)
        if found is None:
            return None
        return Blob(key, found.body, found.etag, self._network.truncated(found.modified_ms), date_ms)

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""
        found, _ = await self._send(kind_of("GET", key), key)
        return None if found is None else self._entry(key, found)

    async def put(
        self, key: str, body: bytes, condition: Condition, *, ours: Callable[[bytes], bool] | None = None
    ) -> Written | None:
        """Write an object; None if the condition was not met."""
        is_create = isinstance(condition, IfAbsent)
        read_at = condition.read_at if isinstance(condition, IfAbsent) else None
        row = kind_of("PUT", key, body, is_create=is_create)
        etag, _ = await self._send(row, key, read_at=read_at, body=body, condition=condition)
        if etag is None:
            self._network._oracle.refused(self._process, key, body)
        return None if etag is None else Written(etag)

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        await self.delete_many([key], read_at=read_at)

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete objects in one request; none ever fails."""
        failed, _ = await self._send(kind_of("DELETE", keys[0]), keys[0], read_at=read_at, keys=tuple(keys))
        return list(failed)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        most = min(limit, self.capabilities.max_keys)
        listed, date_ms = await self._send(kind_of("LIST", prefix), prefix, after=after, limit=most)
        found, truncated = listed
        return Page(tuple(self._entry(key, item) for key, item in found), truncated, date_ms)

    async def close(self) -> None:
        """Do nothing."""

    async def _send(self, row: str, key: str, *, read_at: float | None = None, **details: Any) -> Any:
        process = self._process
        if process.is_dying:
            await process.loop.create_future()
        process.requests += 1
        request = Request(process, process.requests, row, key, **details)
        sent = process.clock.monotonic()

        def sign() -> None:
            nonlocal sent
            sent = process.clock.monotonic()
            check_fence(self.time, read_at)

        reply = await self._network.send(request, sign=sign)
        if reply.error is not None:
            raise reply.error
        self.time.observe(reply.date_ms, resolution_ms=self._network.resolution_ms, sent=sent)
        return reply.value, reply.date_ms

    def _entry(self, key: str, item: Any) -> Entry:
        return Entry(key, len(item.body), item.etag, self._network.truncated(item.modified_ms))
