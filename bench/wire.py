"""What a signed PUT costs the client: our wire, and aiohttp's own session, on either event loop.

Example::

    python bench/wire.py                        # some ten seconds
    python bench/wire.py --json

PUTs of 1 KiB, 32 in flight, go to a trivial server in another process; the figure is this
process's CPU time for each, signature included. Wires and loops take turns, round by round, so
that the machine's moods meet all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import uvloop

from buquet.cli.loop import run_async
from buquet.config import AccessKeys
from buquet.s3 import direct
from buquet.s3.client import S3Client
from buquet.s3.credentials import StaticCredentials
from buquet.s3.endpoint import Endpoint

ROUNDS = 10
PUTS = 3_000
IN_FLIGHT = 32
BODY = b"x" * 1024

BUDGETS_US = {("direct", "asyncio"): 50.0, ("direct", "uvloop"): 30.0}

ANSWER = (
    b"HTTP/1.1 200 OK\r\n"
    b'ETag: "d41d8cd98f00b204e9800998ecf8427e"\r\n'
    b"Date: Sun, 29 Nov 2026 12:00:00 GMT\r\n"
    b"Content-Length: 0\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """The CPU time of a PUT, in microseconds, round by round."""

    wire: str
    loop: str
    us: list[float]
    budget_us: float | None

    @property
    def median_us(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.us)


class Trivial(asyncio.Protocol):
    """Answers each request, once its body is there, with the same few bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            _, has_body, rest = head.partition(b"content-length: ")
            size = end + 4 + (int(rest.partition(b"\r\n")[0]) if has_body else 0)
            if len(self._received) < size:
                return
            self._received = self._received[size:]
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


async def serve() -> None:
    """Serve until killed; the first line on stdout is the port."""
    server = await asyncio.get_running_loop().create_server(Trivial, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def served() -> Iterator[str]:
    """The trivial server, in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


class Candidate:
    """One wire on one event loop, connected."""

    def __init__(self, wire: str, loop: str, endpoint: str) -> None:
        self.wire = wire
        self.loop = loop
        self.us: list[float] = []
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None)
        self._runner.__enter__()
        address = Endpoint.resolve(endpoint, "jobs", path_style=True)
        keys = StaticCredentials(AccessKeys("devkey", "devsecret123", None))
        self._fits = direct.fits if wire == "direct" else lambda: False
        self._runner.run(self._connect(address, keys))

    async def _connect(self, address: Endpoint, keys: StaticCredentials) -> None:
        self._client = S3Client(address, "us-east-1", keys)
        fits, direct.fits = direct.fits, self._fits
        try:
            await self._put_many(IN_FLIGHT * 10)
        finally:
            direct.fits = fits

    def go(self) -> None:
        """One round."""
        began = time.process_time()
        self._runner.run(self._put_many(PUTS))
        self.us.append((time.process_time() - began) / PUTS * 1e6)

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._client.close())
        self._runner.__exit__(None, None, None)

    async def _put_many(self, count: int) -> None:
        async def some() -> None:
            for _ in range(count // IN_FLIGHT):
                await self._client.put("tasks/a/1.json", BODY, {"if-none-match": "*"}, time.time)

        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


def measure(rounds: int = ROUNDS) -> list[Cost]:
    """Measure both wires on both loops."""
    with served() as endpoint:
        candidates = [
            Candidate(wire, loop, endpoint)
            for loop in ("asyncio", "uvloop")
            for wire in ("direct", "session")
        ]
        for _ in range(rounds):
            for candidate in candidates:
                candidate.go()
        for candidate in candidates:
            candidate.close()
    return [Cost(one.wire, one.loop, one.us, BUDGETS_US.get((one.wire, one.loop))) for one in candidates]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run_async(serve())
        return
    costs = measure(arguments.rounds)
    if arguments.as_json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return
    print("us of CPU a PUT of 1 KiB")
    print(f"{'wire':<9} {'loop':<9} {'median':>7} {'min':>7} {'max':>7}  budget")
    for cost in costs:
        figures = f"{cost.median_us:7.1f} {min(cost.us):7.1f} {max(cost.us):7.1f}"
        print(f"{cost.wire:<9} {cost.loop:<9} {figures}  {cost.budget_us or ''}")


if __name__ == "__main__":
    main()
