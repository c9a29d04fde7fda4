"""The product's published description: its code blocks run word for word, as users will paste them.

Whole programs run as processes. Blocks that stand on others (a queue, a worker, data of the
user's own) run in this process, with those names given.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import servers

import buquet
from buquet import Queue, Task, TaskStatus, Worker, WorkerRunOptions, connect
from buquet._core.shard import shard_of

SUBMIT = """\
import asyncio
from buquet import connect

async def main():
    queue = await connect()

    task = await queue.submit("send_email", {
        "to": "user@example.com",
        "subject": "Hello!",
        "body": "Welcome to buquet!"
    })

    print(f"Submitted task: {task.id}")

asyncio.run(main())
"""

WORK = """\
import asyncio
from buquet import connect, Worker, WorkerRunOptions

async def main():
    queue = await connect()
    worker = Worker(queue, "worker-1", ["0", "1", "2", "3"])

    @worker.task("send_email")
    async def handle_email(input):
        print(f"Sending email to {input['to']}")
        # Your email logic here
        return {"sent": True, "to": input["to"]}

    await worker.run()

asyncio.run(main())
"""

OPTIONS = """\
opts = WorkerRunOptions(
    poll_interval_ms=500,
    with_monitor=True,
    monitor_check_interval_s=15,
)
await worker.run(opts)
"""

CONNECT = """\
queue = await connect(
    endpoint="http://localhost:4566",  # LocalStack
    bucket="buquet-dev",
    region="us-east-1"
)
"""

AVAILABLE = """\
now = await queue.now()
if task.is_available_at(now):
    ...
"""

RETRY_POLICY = """\
from buquet import RetryPolicy

policy = RetryPolicy(
    initial_interval_ms=1000,  # Start with 1s delay
    max_interval_ms=60000,     # Cap at 60s
    multiplier=2.0,            # Double each time
    jitter_percent=0.25        # Add 25% randomness
)

task = await queue.submit("task", data, retry_policy=policy)
"""

ONE_SHOT = """\
from datetime import datetime, timedelta

# Schedule a task to run in 1 hour
task = await queue.submit(
    "send_reminder",
    {"user_id": "123"},
    schedule_at=datetime.now() + timedelta(hours=1),
)
print(f"Task {task.id} scheduled for {task.available_at}")

# Schedule for a specific time
task = await queue.submit(
    "generate_report",
    {"type": "daily"},
    schedule_at=datetime(2026, 1, 28, 9, 0, 0),
)
"""

ERRORS = """\
from buquet import RetryableError, PermanentError

@worker.task("fetch_data")
async def fetch_data(input):
    try:
        response = await http_client.get(input["url"])
        return {"data": response.json()}
    except ConnectionError as e:
        # Will be retried
        raise RetryableError(f"Connection failed: {e}")
    except ValueError as e:
        # Will NOT be retried
        raise PermanentError(f"Invalid data: {e}")
"""


async def run_block(block: str, **names: Any) -> dict[str, Any]:
    """Run a block, `await` outside of functions allowed; return all names it knows then."""
    code = compile(block, "<published>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    outcome = eval(code, names)
    if inspect.isawaitable(outcome):
        await outcome
    return names


@contextmanager
def program(block: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", block], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["local", pytest.param("seaweedfs", marks=pytest.mark.server)])
def configured(
    request: pytest.FixtureRequest,
    running: Callable[[str], servers.Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make the environment name an empty queue that several processes can share."""
    if request.param == "local":
        monkeypatch.setenv("S3_ENDPOINT", f"local:{tmp_path}/queue.db")
        return
    server = running(request.param)
    monkeypatch.setenv("S3_ENDPOINT", server.endpoint)
    monkeypatch.setenv("S3_BUCKET", server.new_bucket())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET_ACCESS_KEY)


@pytest.fixture
def queue(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Queue]:
    queue = runner.run(_connected(f"local:{tmp_path}/queue.db"))
    yield queue
    runner.run(queue.close())


async def _connected(endpoint: str) -> Queue:
    return await connect(endpoint)


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    run = asyncio.create_task(worker.run(WorkerRunOptions(poll_interval_ms=50)))
    try:
        yield
    finally:
        await worker.stop()
        await run


# --- quick start ---------------------------------------------------------------------------


def test_submit_a_task(configured: None, runner: asyncio.Runner) -> None:
    with program(SUBMIT) as process:
        printed, complaints = process.communicate(timeout=30)
    assert complaints == "", "a queue that is never closed ends without a word"
    assert process.returncode == 0
    prefix, task_id = printed.rstrip("\n").rsplit(" ", 1)
    assert prefix == "Submitted task:"

    async def read() -> Task | None:
        async with connect() as queue:
            return await queue.get(task_id)

    task = runner.run(read())
    assert task is not None
    assert task.status is TaskStatus.Pending
    assert task.input == {"to": "user@example.com", "subject": "Hello!", "body": "Welcome to buquet!"}


async def test_run_a_worker(configured: None) -> None:
    async with connect() as queue:
        mine, others = await _submit_to_both_parts(queue)
        with program(WORK) as process:
            done = [await queue.wait(task_id, timeout_s=30) for task_id in mine]
            process.send_signal(signal.SIGTERM)
            printed, complaints = await asyncio.to_thread(process.communicate, timeout=30)
        left = [await queue.get(task_id) for task_id in others]
    assert all(task.output == {"sent": True, "to": "user@example.com"} for task in done)
    assert printed == "Sending email to user@example.com\n" * len(mine)
    assert process.returncode == 0
    assert complaints == "worker worker-1 covers 4 of 16 shards\n"
    assert all(task is not None and task.status is TaskStatus.Pending for task in left)


async def _submit_to_both_parts(queue: Queue) -> tuple[list[str], list[str]]:
    """Submit until there are tasks in the worker's shards and in others; return both kinds of ids."""
    mine: list[str] = []
    others: list[str] = []
    while not (mine and others):
        task = await queue.submit("send_email", {"to": "user@example.com"})
        (mine if queue.keys.shard(task.id) in {"0", "1", "2", "3"} else others).append(task.id)
    return mine, others


async def test_custom_run_options(queue: Queue) -> None:
    worker = Worker(queue, "worker-1")

    @worker.task("last")
    async def stop(input: Any) -> None:
        await worker.stop()

    task = await queue.submit("last", {})
    names = await run_block(OPTIONS, worker=worker, WorkerRunOptions=WorkerRunOptions)
    assert names["opts"].poll_interval_ms == 500
    done = await queue.get(task.id)
    assert done is not None
    assert done.status is TaskStatus.Completed


@asynccontextmanager
async def port_4566(server: servers.Server) -> AsyncIterator[None]:
    """Let localhost:4566, LocalStack's own port, lead to a test server."""

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer), return_exceptions=True)

    try:
        listener = await asyncio.start_server(relay, "127.0.0.1", 4566)
    except OSError:
        if "CI" in os.environ:
            raise
        pytest.skip("something else listens on port 4566 of this machine")
    async with listener:
        yield


@pytest.mark.server
async def test_connect_with_arguments(localstack: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET_ACCESS_KEY)
    localstack.client.create_bucket(Bucket="buquet-dev")
    async with port_4566(localstack):
        queue = (await run_block(CONNECT, connect=connect))["queue"]
        task = await queue.submit("send_email", {})
        assert await queue.get(task.id) == task
        await queue.close()
    assert localstack.client.get_object(Bucket="buquet-dev", Key="buquet.json")["Body"].read()


# --- names and defaults --------------------------------------------------------------------

CALLS = {
    buquet.connect: "endpoint=None, bucket=None, region=None",
    Queue.submit: "task_type, input, timeout_seconds=300, max_retries=3, retry_policy=None, schedule_at=None",
    Queue.get: "task_id",
    Queue.list: "shard, status=None, limit=100",
    Queue.list_ready: "shard, limit=100",
    Queue.get_history: "task_id",
    Queue.now: "",
    Worker: "queue, worker_id, shards",
    Worker.task: "task_type",
    Worker.run: "options=None",
}


@pytest.mark.parametrize(
    ("call", "published"), CALLS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_calls_are_as_published(call: Callable[..., Any], published: str) -> None:
    """The published parameters come first, in order, by these names and with these defaults."""
    ours = [
        parameter
        for parameter in inspect.signature(call).parameters.values()
        if parameter.name != "self" and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    for parameter, text in zip(ours, filter(None, published.split(", ")), strict=False):
        name, _, default = text.partition("=")
        assert parameter.name == name
        if default:
            assert parameter.default == ast.literal_eval(default)
    assert len(ours) >= len(list(filter(None, published.split(", "))))


def test_statuses_are_as_published() -> None:
    assert {status.name: status.value for status in TaskStatus} == {
        "Pending": "pending",
        "Running": "running",
        "Completed": "completed",
        "Failed": "failed",
        "Archived": "archived",
    }


async def test_a_task_has_the_published_properties(queue: Queue) -> None:
    worker = Worker(queue)
    worker.task("send_email")(lambda input: {"sent": True})
    task = await queue.submit("send_email", {"to": "user@example.com"})
    assert (task.task_type, task.status, task.input) == ("send_email", "pending", {"to": "user@example.com"})
    assert (task.output, task.retry_count, task.last_error) == (None, 0, None)
    assert abs(task.created_at - datetime.now(UTC)) < timedelta(seconds=5)
    async with working(worker):
        assert (await queue.wait(task.id, timeout_s=20)).output == {"sent": True}


# --- time ----------------------------------------------------------------------------------


async def test_time_dependent_checks(queue: Queue) -> None:
    task = await queue.submit("send_email", {})
    later = await queue.submit("send_email", {}, schedule_at=datetime.now() + timedelta(hours=1))
    names = await run_block(AVAILABLE, queue=queue, task=task)
    assert isinstance(names["now"], str)
    assert task.is_available_at(names["now"])
    assert not later.is_available_at(names["now"])


async def test_one_shot_scheduling(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    """A time in the past means now, so the second task is due at once."""
    before = datetime.now(UTC)
    names = await run_block(ONE_SHOT, queue=queue)
    printed = capsys.readouterr().out
    reminder = await queue.get(printed.split()[1])
    assert reminder is not None
    assert printed == f"Task {reminder.id} scheduled for {reminder.available_at}\n"
    assert abs(reminder.available_at - before - timedelta(hours=1)) < timedelta(seconds=5)
    report = names["task"]
    past = datetime(2026, 1, 28, 9, 0, 0).astimezone()
    assert report.available_at == max(past, report.created_at)

    worker = Worker(queue)
    for task_type in ("send_reminder", "generate_report"):
        worker.task(task_type)(lambda input: input)
    async with working(worker):
        assert (await queue.wait(report.id, timeout_s=20)).output == {"type": "daily"}
    still = await queue.get(reminder.id)
    assert still is not None
    assert still.status is TaskStatus.Pending, "it is not picked up until its time"


# --- failures ------------------------------------------------------------------------------


async def test_retry_policy(queue: Queue) -> None:
    names = await run_block(RETRY_POLICY, queue=queue, data={"some": "data"})
    task = await queue.get(names["task"].id)
    assert task is not None
    assert task.input == {"some": "data"}
    assert task.retry_policy == names["policy"]


class HttpClient:
    """The user's own: fails as often as a URL says, then answers."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def get(self, url: str) -> HttpClient:
        self.calls.append(url)
        if url == "flaky" and self.calls.count("flaky") < 3:
            raise ConnectionError("no route")
        if url == "garbage":
            raise ValueError("not JSON")
        return self

    def json(self) -> list[int]:
        return [1, 2]


async def test_error_handling(queue: Queue) -> None:
    worker, http_client = Worker(queue), HttpClient()
    await run_block(ERRORS, worker=worker, http_client=http_client)
    policy = buquet.RetryPolicy(initial_interval_ms=10)
    flaky = await queue.submit("fetch_data", {"url": "flaky"}, retry_policy=policy)
    garbage = await queue.submit("fetch_data", {"url": "garbage"}, retry_policy=policy)
    async with working(worker):
        flaky = await queue.wait(flaky.id, timeout_s=20)
        garbage = await queue.wait(garbage.id, timeout_s=20)
    assert (flaky.status, flaky.output, flaky.retry_count) == ("completed", {"data": [1, 2]}, 2)
    assert flaky.last_error == "RetryableError: Connection failed: no route"
    assert (garbage.status, garbage.retry_count) == ("failed", 0)
    assert garbage.last_error == "PermanentError: Invalid data: not JSON"
    assert http_client.calls.count("garbage") == 1


# --- the embedded store in memory ------------------------------------------------------------


def test_the_quick_start_in_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `memory:` both programs share this process's bucket; the worker is stopped by a signal."""
    monkeypatch.setenv("S3_ENDPOINT", "memory:")
    monkeypatch.setenv("S3_BUCKET", "quick-start")
    shard = "?"
    while shard not in {"0", "1", "2", "3"}:
        exec(compile(SUBMIT, "<published>", "exec"), {})
        shard = shard_of(capsys.readouterr().out.split()[-1], 1)

    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        exec(compile(WORK, "<published>", "exec"), {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert "Sending email to user@example.com\n" in capsys.readouterr().out
