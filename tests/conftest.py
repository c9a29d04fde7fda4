"""What all tests share: coroutine tests, a clean environment, and stores of every kind.

`async def` tests run as they are. `store` is one store on an empty bucket, of each kind in
turn; `open_store` opens further clients of the same bucket. The real servers are also
fixtures by their names (`seaweedfs`, `localstack`, `ministack`, `rclone`), each started when
a test first asks for it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import servers

from buquet.clock import StoreClock, SystemClock
from buquet.store.interface import Store
from buquet.store.local import LocalStore
from buquet.store.memory import MemoryBucket, MemoryStore
from buquet.store.retry import Retrying
from buquet.store.s3 import open_store as open_s3_store

TEST_TIMEOUT_S = 120
"""No single coroutine test may take longer, so that one that hangs is named."""

OpenStore = Callable[[], Store]


def pytest_configure() -> None:
    """Let Ctrl-C stop what the tests start, also where they run in the background.

    A shell without job control starts background jobs with SIGINT ignored, and that is inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# --- coroutine tests -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of one test and its fixtures; made when first used."""
    with asyncio.Runner(debug=False) as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on its runner's loop."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def limited() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await test(**arguments)

    pyfuncitem.funcargs["runner"].run(limited())
    return True


# --- the environment -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's settings, credentials and cloud out of every test."""
    for name in list(os.environ):
        if name.startswith(("S3_", "AWS_", "BUQUET_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")


# --- servers -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], servers.Server]]:
    """Return the running server of a name, started at the first call; all stop with the session."""
    started: dict[str, servers.Server] = {}

    def get(name: str) -> servers.Server:
        if name not in started:
            server = servers.SERVERS[name](tmp_path_factory.mktemp(name))
            server.start()
            started[name] = server
        return started[name]

    yield get
    for server in started.values():
        server.stop()


@pytest.fixture
def seaweedfs(running: Callable[[str], servers.Server]) -> servers.Server:
    return running("seaweedfs")


@pytest.fixture
def localstack(running: Callable[[str], servers.Server]) -> servers.Server:
    return running("localstack")


@pytest.fixture
def ministack(running: Callable[[str], servers.Server]) -> servers.Server:
    return running("ministack")


@pytest.fixture
def rclone(running: Callable[[str], servers.Server]) -> servers.Server:
    return running("rclone")


# --- stores --------------------------------------------------------------------------------


EMBEDDED = ("memory", "local")
REAL = ("seaweedfs", "localstack", "ministack")
KINDS = (*EMBEDDED, *(pytest.param(name, marks=pytest.mark.server) for name in REAL))


@pytest.fixture(params=KINDS)
def open_store(
    request: pytest.FixtureRequest,
    runner: asyncio.Runner,
    running: Callable[[str], servers.Server],
    tmp_path: Path,
) -> Iterator[OpenStore]:
    """Return a function that opens a client of one empty bucket; all are closed with the test.

    A test may name the kinds that it is for:
    `@pytest.mark.parametrize("open_store", ["local"], indirect=True)`.
    """
    opened: list[Store] = []
    open_one = _opener(request.param, running, tmp_path)

    def open_and_keep() -> Store:
        opened.append(open_one())
        return opened[-1]

    yield open_and_keep
    for store in opened:
        runner.run(store.close())


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """One store on an empty bucket, as a queue uses it, of each kind in turn."""
    return open_store()


def _opener(kind: str, running: Callable[[str], servers.Server], directory: Path) -> OpenStore:
    clock = SystemClock()
    if kind == "memory":
        bucket = MemoryBucket(clock)
        return lambda: MemoryStore(clock, bucket)
    if kind == "local":
        return lambda: Retrying(LocalStore(directory / "queue.db", clock), clock)
    server = running(kind)
    settings = server.settings(server.new_bucket())
    return lambda: Retrying(open_s3_store(settings, StoreClock(clock)), clock)
