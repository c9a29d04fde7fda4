"""500 tasks under every fault, alone and mixed: all come to an end, and none completes twice.

The worker is a process of its own that knows only the proxy. What is checked is what the store
itself holds, what the proxy saw the store accept, and what the handlers did in a file.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import servers
from fault_proxy import (
    CONDITIONAL,
    WRITES,
    BusyKey,
    DelayReply,
    Drip,
    DropReply,
    FaultProxy,
    Instead,
    Late,
    Refuse,
    Reset,
    Rule,
    Skew,
    StaleList,
    Truncate,
    WrongLength,
)
from worker_process import CONCURRENCY, LIMITS

from buquet import TaskStatus
from buquet.clock import StoreClock, SystemClock
from buquet.connection import agree
from buquet.protocol.keys import Keys
from buquet.protocol.retry_policy import RetryPolicy
from buquet.queue import Queue
from buquet.store.driver import Operation
from buquet.store.retry import Retrying
from buquet.store.s3 import open_store as open_s3

pytestmark = pytest.mark.server

TASKS = 500
SPARE_SOCKETS = 4
MEMORY_GROWTH = 1.1
SUBMITTERS = 32

READS = frozenset({Operation.GET, Operation.LIST})

CONFLICT = Refuse(409, "ConditionalRequestConflict")

REDIRECT = Refuse(307, "TemporaryRedirect", headers={"x-amz-bucket-region": "eu-west-1"})
EXPIRED = Refuse(400, "ExpiredToken")

CASES: dict[str, list[Rule]] = {
    "409": [
        Rule(CONFLICT, CONDITIONAL, odds=0.15),
        Rule(replace(CONFLICT, applied=True), CONDITIONAL, odds=0.1),
    ],
    "404 instead of 412": [
        Rule(Instead(412, 404, "NoSuchKey"), [Operation.REPLACE]),
        Rule(DropReply(), CONDITIONAL, odds=0.2),
    ],
    "429 per key": [
        # Not of every key: the budget for retries is half of what is answered.
        Rule(BusyKey(0.3), WRITES, key="^tasks/[0-7]/"),
        Rule(Refuse(429, "TooManyRequests"), odds=0.05),
    ],
    "500": [Rule(Refuse(500, "InternalError"), odds=0.2)],
    "500 yet applied": [Rule(Refuse(500, "InternalError", applied=True), odds=0.2)],
    "503": [Rule(Refuse(503, "SlowDown"), odds=0.2)],
    "503 yet applied": [Rule(Refuse(503, "SlowDown", applied=True), odds=0.2)],
    "reply dropped": [Rule(DropReply(), odds=0.2)],
    "reply too late": [Rule(DelayReply(LIMITS.read_s + 0.5), odds=0.03)],
    "applied late": [
        Rule(Late(0.5), odds=0.1),
        Rule(Late(0.5, Refuse(503, "SlowDown")), odds=0.1),
    ],
    "reset amid the body": [Rule(Reset(), odds=0.2)],
    "truncated body": [Rule(Truncate(), odds=0.2)],
    "wrong Content-Length": [
        Rule(WrongLength(+10), odds=0.03),
        Rule(WrongLength(-10), READS, odds=0.1),
    ],
    "slow drip": [Rule(Drip(20, 0.005), odds=0.2), Rule(Drip(1, 0.1), odds=0.01)],
    "stale LIST": [Rule(StaleList(), [Operation.LIST], odds=0.5)],
    "Date an hour off": [Rule(Skew(3600), every=20), Rule(Skew(-3600), every=23)],
    # Elsewhere they end the worker, see below.
    "307": [Rule(REDIRECT, key="^tasks/", odds=0.1)],
    "expired token": [Rule(EXPIRED, key="^tasks/", odds=0.1)],
}


# --- every fault -----------------------------------------------------------------------------


@pytest.mark.parametrize("rules", CASES.values(), ids=CASES.keys())
async def test_every_task_ends_once(rules, seaweedfs, tmp_path):
    proxy = await _run(rules, seaweedfs, tmp_path, seed=1)
    for rule in rules:
        assert proxy.fired[type(rule.fault).__name__], f"{rule} has never fired"


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_task_ends_once_under_a_mix(seed, seaweedfs, tmp_path):
    cases = random.Random(seed).sample(sorted(CASES), 6)
    print("mixed:", cases)
    mix = [replace(rule, odds=rule.odds / 4) for case in cases for rule in CASES[case]]
    proxy = await _run(mix, seaweedfs, tmp_path, seed=seed)
    assert proxy.fired.total() > TASKS / 5


async def test_a_paced_worker_meets_no_busy_key(seaweedfs, tmp_path):
    proxy = await _run([Rule(BusyKey(1.0), WRITES)], seaweedfs, tmp_path, seed=1, driver="r2")
    assert not proxy.fired


async def _run(
    rules: list[Rule], server: servers.Server, tmp_path: Path, *, seed: int, **arguments: str
) -> FaultProxy:
    async with _bench(server, tmp_path, *rules, seed=seed) as bench:
        ids = await bench.submit()
        bench.proxy.most_sockets = 0
        memory = await bench.work(ids, await bench.start_worker(**arguments))
        await bench.proxy.settle()
        await bench.check(ids)
    first, last = memory
    assert last <= MEMORY_GROWTH * first
    assert bench.proxy.most_sockets <= CONCURRENCY + SPARE_SOCKETS
    return bench.proxy


# --- faults that a worker does not survive, and one that it does ---------------------------------


@pytest.mark.parametrize(
    ("refusal", "told"),
    [(REDIRECT, "WrongRegion: .* in the region 'eu-west-1'"), (EXPIRED, "ExpiredCredentials: .* renew it")],
    ids=["307", "expired token"],
)
async def test_a_worker_that_is_refused_says_why_and_loses_nothing(refusal, told, seaweedfs, tmp_path):
    async with _bench(seaweedfs, tmp_path) as bench:
        ids = await bench.submit()
        worker = await bench.start_worker()
        await bench.some_effects()
        bench.proxy.rules = [Rule(refusal, [Operation.LIST])]
        _, errors = await worker.communicate()
        assert worker.returncode == 1
        assert re.search(told, errors.decode())
        bench.proxy.rules = []
        await bench.work(ids, await bench.start_worker())
        await bench.check(ids)


async def test_an_expired_token_is_renewed(ministack, tmp_path, monkeypatch):
    expired, program = tmp_path / "expired", tmp_path / "credentials.py"
    program.write_text(CREDENTIAL_PROCESS)
    (tmp_path / "config").write_text(
        f"[profile renewed]\ncredential_process = {sys.executable} {program} {expired}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    async with _bench(ministack, tmp_path) as bench:
        ids = await bench.submit()
        worker = await bench.start_worker(profile="renewed", access_key_id=None, secret_access_key=None)
        await bench.some_effects()
        expired.touch()
        bench.proxy.rules = [Rule(EXPIRED, header=("x-amz-security-token", "old"))]
        await bench.work(ids, worker)
        await bench.check(ids)
    assert bench.proxy.fired
    assert {seen.request.header("x-amz-security-token") for seen in bench.proxy.seen} == {"", "old", "new"}


CREDENTIAL_PROCESS = f"""
import json, sys
from pathlib import Path

token = "new" if Path(sys.argv[1]).exists() else "old"
print(json.dumps({{
    "Version": 1,
    "AccessKeyId": "{servers.ACCESS_KEY_ID}",
    "SecretAccessKey": "{servers.SECRET_ACCESS_KEY}",
    "SessionToken": token,
}}))
"""


# --- the bench -------------------------------------------------------------------------------


@dataclass
class Bench:
    """A queue that is submitted to and worked on through a proxy, and looked at without it."""

    server: servers.Server
    bucket: str
    proxy: FaultProxy
    directory: Path
    queue: Queue
    workers: list[Process] = field(default_factory=list)

    @property
    def effects(self) -> Path:
        """Where handlers write the ids of the tasks that they ran to the end."""
        return self.directory / "effects"

    async def submit(self) -> list[str]:
        """Submit all tasks through the proxy; return their ids."""
        queue, limit = _open(self.server, self.bucket, self.proxy.endpoint), asyncio.Semaphore(SUBMITTERS)

        async def one(number: int) -> str:
            async with limit:
                task = await queue.submit(
                    "count",
                    {"n": number},
                    timeout_seconds=5,
                    max_retries=10,
                    retry_policy=RetryPolicy(initial_interval_ms=50),
                )
                return task.id

        async with queue:
            return await asyncio.gather(*(one(number) for number in range(TASKS)))

    async def start_worker(self, **others: str | None) -> Process:
        """Start a worker process on the queue, `others` being arguments of `connect`."""
        arguments = {
            "effects": str(self.effects),
            "endpoint": self.proxy.endpoint,
            "bucket": self.bucket,
            "region": servers.REGION,
            "access_key_id": servers.ACCESS_KEY_ID,
            "secret_access_key": servers.SECRET_ACCESS_KEY,
            **others,
        }
        program = Path(__file__).with_name("worker_process.py")
        worker = await asyncio.create_subprocess_exec(
            sys.executable, str(program), json.dumps(arguments), stdout=PIPE, stderr=PIPE
        )
        self.workers.append(worker)
        return worker

    async def some_effects(self) -> None:
        """Wait until a fifth of the tasks are done."""
        self.effects.touch()
        while len(self.effects.read_text().split()) < TASKS / 5:
            assert all(worker.returncode is None for worker in self.workers)
            await asyncio.sleep(0.05)

    async def work(self, ids: list[str], worker: Process) -> list[int]:
        """Let a worker bring all tasks to an end; return the memory it held after the first and last."""

        async def stop_at_the_end() -> None:
            for task_id in ids:
                while not (await self.queue.get(task_id)).status.is_terminal:
                    await asyncio.sleep(0.1)
            worker.send_signal(signal.SIGTERM)

        stop = asyncio.create_task(stop_at_the_end())
        output, errors = await worker.communicate()
        stop.cancel()
        assert worker.returncode == 0, errors.decode()
        return json.loads(output)["memory"]

    async def check(self, ids: list[str]) -> None:
        """Each task is what its handler made of it, and the store accepted one end of it."""
        done = set(self.effects.read_text().split())
        for number, task_id in enumerate(ids):
            task = await self.queue.get(task_id)
            assert task is not None
            fails = number % 25 == 7
            assert task.status is (TaskStatus.Failed if fails else TaskStatus.Completed)
            assert task.output == (None if fails else {"n": number})
            assert task.attempt >= (2 if number % 10 == 3 and not fails else 1)
            assert (task_id in done) is not fails
        assert self._ends() == Counter(ids)

    def _ends(self) -> Counter[str]:
        """How many writes of each task's end the store has accepted, whatever the worker was told."""
        ends: Counter[str] = Counter()
        for seen in self.proxy.seen:
            request = seen.request
            if seen.status == 200 and request.operation in WRITES and request.key.startswith("tasks/"):
                record = json.loads(request.body)
                ends[record["id"]] += record["status"] in {"completed", "failed"}
        return ends


@asynccontextmanager
async def _bench(
    server: servers.Server, directory: Path, *rules: Rule, seed: int = 0
) -> AsyncIterator[Bench]:
    bucket = server.new_bucket()
    async with (
        FaultProxy(server.endpoint, *rules, seed=seed) as proxy,
        _open(server, bucket, server.endpoint) as queue,
    ):
        await agree(queue.store, "", None)
        bench = Bench(server, bucket, proxy, directory, queue)
        try:
            yield bench
        finally:
            for worker in bench.workers:
                if worker.returncode is None:
                    worker.kill()
                    await worker.communicate()


def _open(server: servers.Server, bucket: str, endpoint: str) -> Queue:
    clock = SystemClock()
    settings = replace(server.settings(bucket), endpoint=endpoint)
    return Queue(Retrying(open_s3(settings, StoreClock(clock), LIMITS), clock), Keys())
