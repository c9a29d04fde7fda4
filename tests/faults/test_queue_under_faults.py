"""500 tasks under every fault, alone and mixed: all come to an end, and none completes twice.

The worker is a process of its own that knows only the proxy. What is checked is what the store
itself holds, what the proxy saw the store accept, and what the handlers did in a file.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass, replace
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
SUBMITTERS = 16

READS = frozenset({Operation.GET, Operation.LIST})

CONFLICT = Refuse(409, "ConditionalRequestConflict")

CASES: dict[str, list[Rule]] = {
    "409": [
        Rule(CONFLICT, CONDITIONAL, odds=0.15),
        Rule(replace(CONFLICT, applied=True), CONDITIONAL, odds=0.1),
    ],
    "404 instead of 412": [
        Rule(Instead(412, 404, "NoSuchKey"), [Operation.REPLACE]),
        Rule(DropReply(), CONDITIONAL, odds=0.2),
    ],
    "429 per key": [Rule(BusyKey(0.2), WRITES), Rule(Refuse(429, "TooManyRequests"), odds=0.05)],
    "500": [Rule(Refuse(500, "InternalError"), odds=0.2)],
    "500 yet applied": [Rule(Refuse(500, "InternalError", applied=True), odds=0.2)],
    "503": [Rule(Refuse(503, "SlowDown"), odds=0.2)],
    "503 yet applied": [Rule(Refuse(503, "SlowDown", applied=True), odds=0.2)],
    "reply dropped": [Rule(DropReply(), odds=0.2)],
    "reply too late": [Rule(DelayReply(LIMITS.read_s + 0.5), odds=0.05)],
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
    "slow drip": [Rule(Drip(20, 0.005), odds=0.2), Rule(Drip(1, 0.1), odds=0.02)],
    "stale LIST": [Rule(StaleList(), [Operation.LIST], odds=0.5)],
    "Date an hour off": [Rule(Skew(3600), every=20), Rule(Skew(-3600), every=23)],
}


@pytest.mark.parametrize("rules", CASES.values(), ids=CASES.keys())
async def test_every_task_ends_once(rules, seaweedfs, tmp_path):
    await _run(rules, seaweedfs, tmp_path, seed=1)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_task_ends_once_under_a_mix(seed, seaweedfs, tmp_path):
    chance = random.Random(seed)
    cases = chance.sample(sorted(CASES), 6)
    mix = [replace(rule, odds=rule.odds / 4) for case in cases for rule in CASES[case]]
    print("mixed:", cases)
    await _run(mix, seaweedfs, tmp_path, seed=seed)


# --- one run ---------------------------------------------------------------------------------


@dataclass
class Bench:
    """A queue that is submitted to and worked on through a proxy, and looked at without it."""

    server: servers.Server
    bucket: str
    proxy: FaultProxy
    effects: Path

    def open(self, endpoint: str) -> Queue:
        settings = replace(self.server.settings(self.bucket), endpoint=endpoint)
        clock = SystemClock()
        return Queue(Retrying(open_s3(settings, StoreClock(clock), LIMITS), clock), Keys())

    async def submit(self) -> list[str]:
        """Submit all tasks through the proxy; return their ids."""
        queue, limit = self.open(self.proxy.endpoint), asyncio.Semaphore(SUBMITTERS)

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

    async def work(self, queue: Queue, ids: list[str]) -> list[int]:
        """Let a worker finish all tasks; return the memory it held after the first and at the end."""
        arguments = {
            "effects": str(self.effects),
            "endpoint": self.proxy.endpoint,
            "bucket": self.bucket,
            "region": servers.REGION,
            "access_key_id": servers.ACCESS_KEY_ID,
            "secret_access_key": servers.SECRET_ACCESS_KEY,
        }
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("worker_process.py")),
            json.dumps(arguments),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            for task_id in ids:
                await queue.wait(task_id)
        finally:
            worker.send_signal(signal.SIGTERM)
            output, _ = await worker.communicate()
        return json.loads(output)["memory"]


async def _run(rules: list[Rule], server: servers.Server, tmp_path: Path, *, seed: int) -> None:
    async with FaultProxy(server.endpoint, *rules, seed=seed) as proxy:
        bench = Bench(server, server.new_bucket(), proxy, tmp_path / "effects")
        async with bench.open(server.endpoint) as queue:
            await agree(queue.store, "", None)
            import time
            t0=time.monotonic()
            ids = await bench.submit()
            t1=time.monotonic()
            proxy.most_sockets = 0
            first, last = await bench.work(queue, ids)
            t2=time.monotonic()
            await proxy.settle()
            tasks = [await queue.get(task_id) for task_id in ids]
        print("submit", t1-t0, "work", t2-t1, "sock", proxy.most_sockets, "mem", first/2**20, last/first, len(proxy.seen), proxy.fired)
    _check_fired(rules, proxy)
    _check_tasks(tasks)
    _check_effects(bench.effects, tasks)
    _check_accepted(proxy, ids)
    assert proxy.most_sockets <= CONCURRENCY + SPARE_SOCKETS
    assert last <= MEMORY_GROWTH * first


def _check_fired(rules: list[Rule], proxy: FaultProxy) -> None:
    for rule in rules:
        assert proxy.fired[type(rule.fault).__name__], f"{rule} has never fired"


def _check_tasks(tasks) -> None:
    """Each is what its handler made of it, and was completed or failed once."""
    for number, task in enumerate(tasks):
        fails = number % 25 == 7
        assert task.status is (TaskStatus.Failed if fails else TaskStatus.Completed), task
        assert task.output == (None if fails else {"n": number})
        assert task.attempt >= (2 if number % 10 == 3 and not fails else 1)


def _check_effects(effects: Path, tasks) -> None:
    done = Counter(effects.read_text().split())
    assert done.keys() == {task.id for task in tasks if task.status is TaskStatus.Completed}


def _check_accepted(proxy: FaultProxy, ids: list[str]) -> None:
    """The store has accepted one end of each task, whatever the worker was told."""
    ends: Counter[str] = Counter()
    for seen in proxy.seen:
        if seen.status == 200 and seen.request.operation in WRITES and seen.request.key.startswith("tasks/"):
            record = json.loads(seen.request.body)
            ends[record["id"]] += record["status"] in {"completed", "failed"}
    assert ends == Counter(ids)
