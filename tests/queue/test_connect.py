"""connect(): the manifest, and errors that name cause and cure."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import servers
from virtual import World, requests, virtual

import buquet.connection
from buquet import Queue, UnfitStore, Worker, WorkerRunOptions, connect
from buquet.clock import SystemClock
from buquet.connection import agree
from buquet.errors import (
    BadEndpoint,
    BucketMissing,
    BuquetError,
    ClockSkewed,
    ConfigError,
    ManifestMismatch,
    NewerLayout,
    NoBucket,
    NoCredentials,
    PoisonRecord,
    Unavailable,
    UnknownAccessKey,
    UnknownDriver,
    WrongSecret,
)
from buquet.store.interface import Always

BURST = WorkerRunOptions(burst=True, with_monitor=False)


def to(server: servers.Server, bucket: str, **changes: Any) -> Any:
    """Connect to a bucket of a server."""
    arguments = {
        "driver": server.driver,
        "access_key_id": servers.ACCESS_KEY_ID,
        "secret_access_key": servers.SECRET_ACCESS_KEY,
    }
    return connect(server.endpoint, bucket, servers.REGION, **(arguments | changes))


# --- the manifest --------------------------------------------------------------------------


@virtual
async def test_the_first_client_probes_and_creates_the_others_read(world: World) -> None:
    first = world.queue()
    manifest = await agree(first.store, "", None)  # type: ignore[arg-type]
    assert (manifest.shard_prefix_len, manifest.fitness.driver) == (1, "memory")
    assert manifest.created_at == "2027-01-15T08:00:00.000Z"
    assert world.keys() == ["buquet.json"], "the probe cleans up behind itself"
    second = world.queue()
    assert await agree(second.store, "", None) == manifest  # type: ignore[arg-type]
    assert requests(second).counts == {"get": 1}


@virtual
async def test_clients_that_create_at_once_agree(world: World) -> None:
    stores: list[Any] = [world.queue().store for _ in range(8)]
    manifests = await asyncio.gather(*(agree(store, "", None) for store in stores))
    assert len({manifest.nonce for manifest in manifests}) == 1
    assert world.keys() == ["buquet.json"]


@virtual
async def test_of_clients_that_disagree_one_creates_and_the_others_are_told(world: World) -> None:
    stores: list[Any] = [world.queue().store for _ in range(4)]
    results = await asyncio.gather(
        *(agree(store, "", length) for length, store in enumerate(stores, 1)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Manifest"] + ["ManifestMismatch"] * 3


@virtual
async def test_queues_of_different_prefixes_are_strangers(world: World) -> None:
    store: Any = world.queue().store
    assert (await agree(store, "a/", 1)).shard_prefix_len == 1
    assert (await agree(store, "b/", 3)).shard_prefix_len == 3
    assert world.keys() == ["a/buquet.json", "b/buquet.json"]


@pytest.mark.parametrize(("body", "error"), [(b"hello", PoisonRecord), (b'{"v": 2}', NewerLayout)])
@virtual
async def test_a_manifest_that_cannot_be_read_is_not_overwritten(
    world: World, body: bytes, error: type[BuquetError]
) -> None:
    world.bucket.put("buquet.json", body, Always())
    with pytest.raises(error, match=r"buquet\.json"):
        await agree(world.queue().store, "", None)  # type: ignore[arg-type]
    assert world.keys() == ["buquet.json"]


async def test_a_queue_keeps_the_setting_it_was_created_with(tmp_path: Path) -> None:
    endpoint = f"local:{tmp_path}/queue.db"
    async with connect(endpoint, shard_prefix_len=2) as queue:
        task = await queue.submit("do", {})
    with pytest.raises(ManifestMismatch, match="created with shard_prefix_len=2, not 1"):
        await connect(endpoint, shard_prefix_len=1)
    async with connect(endpoint) as queue:
        assert len(queue.keys.shards()) == 256
        assert await queue.get(task.id) == task


@pytest.mark.parametrize(("length", "error"), [(0, ValueError), (5, ValueError), ("1", TypeError)])
def test_a_setting_out_of_range_is_refused_before_anything_happens(
    length: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="shard_prefix_len must be"):
        connect("memory:", shard_prefix_len=length)


async def test_connect_is_awaited_or_entered() -> None:
    queue = await connect("memory:", "a-bucket")
    async with connect("memory:", "a-bucket") as again:
        assert isinstance(again, Queue)
        assert (await again.get((await queue.submit("do", {})).id)) is not None
    async with queue:
        pass
    await queue.close()
    await queue.close()


async def test_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT", f"local:{tmp_path}/queue.db")
    monkeypatch.setenv("S3_BUCKET", "of-the-environment")
    monkeypatch.setenv("BUQUET_PREFIX", "team")
    monkeypatch.setenv("BUQUET_MAX_PAYLOAD_BYTES", "20")
    async with connect() as queue:
        assert queue.keys.prefix == "team/"
        assert queue.max_payload_bytes == 20
        task = await queue.submit("do", "x" * 18)
    async with connect(bucket="another-one") as queue:
        assert await queue.get(task.id) is None
    async with connect(f"local:{tmp_path}/queue.db", "of-the-environment", prefix="team/") as queue:
        assert await queue.get(task.id) == task


# --- errors --------------------------------------------------------------------------------


class Hasty(SystemClock):
    """A clock that does not sleep long, so that giving up does not take its ten seconds."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.001))


class Wrong(SystemClock):
    """A clock that is an hour slow."""

    def unix(self) -> float:
        return super().unix() - 3600


def refusals(seaweedfs: servers.Server, free_port: int) -> dict[str, tuple[Callable[[], Any], type, str]]:
    """Every way to be refused: how to connect, the error, and words of it."""
    bucket = seaweedfs.new_bucket()
    down = f"http://127.0.0.1:{free_port}"
    keys = {"access_key_id": "k", "secret_access_key": "s"}
    return {
        "bucket missing": (lambda: to(seaweedfs, "not-there"), BucketMissing, "'not-there' does not exist"),
        "wrong secret": (
            lambda: to(seaweedfs, bucket, secret_access_key="wrong"),
            WrongSecret,
            "AWS_SECRET_ACCESS_KEY",
        ),
        "unknown key": (
            lambda: to(seaweedfs, bucket, access_key_id="nobody"),
            UnknownAccessKey,
            "AWS_ACCESS_KEY_ID",
        ),
        "no credentials": (
            lambda: connect(seaweedfs.endpoint, bucket),
            NoCredentials,
            "credentials",
        ),
        "no bucket": (lambda: connect(seaweedfs.endpoint, **keys), NoBucket, "S3_BUCKET"),
        "server down": (lambda: connect(down, "a-bucket", **keys), Unavailable, f"the store at {down}"),
        "no scheme": (lambda: connect("localhost:4566", "a-bucket"), BadEndpoint, "http://localhost:4566"),
        "no driver": (
            lambda: connect(down, "a-bucket", driver="tape", **keys),
            UnknownDriver,
            "tape",
        ),
    }


CASES = [
    "bucket missing",
    "wrong secret",
    "unknown key",
    "no credentials",
    "no bucket",
    "server down",
    "no scheme",
    "no driver",
]


@pytest.mark.server
@pytest.mark.parametrize("case", CASES)
async def test_a_refusal_names_cause_and_cure(
    seaweedfs: servers.Server, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(buquet.connection, "SystemClock", Hasty)
    cases = refusals(seaweedfs, servers.free_ports(1)[0])
    assert list(cases) == CASES
    assert len({kind for _, kind, _ in cases.values()}) == len(cases), "all different"
    attempt, kind, words = cases[case]
    with pytest.raises(BuquetError) as caught:
        await attempt()
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert servers.SECRET_ACCESS_KEY not in repr(caught.value) + str(caught.value)


@pytest.mark.server
async def test_a_clock_an_hour_off_is_corrected_once(
    seaweedfs: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buquet.connection, "SystemClock", Wrong)
    async with to(seaweedfs, seaweedfs.new_bucket()) as queue:
        task = await queue.submit("do", {})
        worker = Worker(queue)
        worker.task("do")(_nothing)
        await worker.run(BURST)
        done = await queue.get(task.id)
        assert done is not None
        assert done.status == "completed"
        assert abs(done.created_at.timestamp() - SystemClock().unix()) < 60


async def test_a_clock_that_stays_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses whatever time a request is signed with."""
    body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>no</Message></Error>"
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            asked += 1
            head = f"HTTP/1.1 403 Forbidden\r\ncontent-length: {len(body)}\r\n"
            writer.write(head.encode() + b"date: Fri, 15 Jan 2027 08:00:00 GMT\r\n\r\n" + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ClockSkewed, match="set the clock"):
            await connect(f"http://127.0.0.1:{port}", "a-bucket", access_key_id="k", secret_access_key="s")
    assert asked == 2


@pytest.mark.server
async def test_a_store_that_ignores_conditions_is_refused(rclone: servers.Server) -> None:
    with pytest.raises(UnfitStore, match="not fit for a queue: it overwrote an object"):
        await to(rclone, rclone.new_bucket())


@pytest.mark.server
async def test_a_bucket_is_created_only_when_asked_for(seaweedfs: servers.Server) -> None:
    with pytest.raises(BucketMissing, match=r"connect\(create_bucket=True\)"):
        await to(seaweedfs, "made-on-demand")
    for _ in range(2):
        async with to(seaweedfs, "made-on-demand", create_bucket=True) as queue:
            await queue.submit("do", {})


async def test_embedded_stores_need_no_bucket_to_be_created(tmp_path: Path) -> None:
    for endpoint in ("memory:", f"local:{tmp_path}/queue.db"):
        async with connect(endpoint, create_bucket=True) as queue:
            await queue.submit("do", {})


def test_settings_errors_are_value_errors() -> None:
    for kind in (NoBucket, NoCredentials, BadEndpoint, UnknownDriver, ManifestMismatch):
        assert issubclass(kind, ConfigError)
        assert issubclass(kind, ValueError)


def test_no_secret_is_printed() -> None:
    connecting = connect("http://127.0.0.1:1", "a-bucket", access_key_id="k", secret_access_key="hunter2")
    settings = connecting._settings
    assert "hunter2" not in repr(settings) + repr(connecting) + str(dataclasses.replace(settings))


# --- a store that is down ------------------------------------------------------------------


async def test_a_store_that_is_down_is_an_error_at_once() -> None:
    endpoint = f"http://127.0.0.1:{servers.free_ports(1)[0]}"
    clock = SystemClock()
    began = clock.monotonic()
    with pytest.raises(Unavailable) as caught:
        await connect(endpoint, "a-bucket", access_key_id="k", secret_access_key="s")
    assert clock.monotonic() - began < 2
    assert f"the store at {endpoint} does not answer" in str(caught.value)
    assert "start it, check the endpoint, or let connect(wait_s=...) wait for it" in str(caught.value)


@pytest.mark.server
async def test_a_store_that_comes_up_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = servers.SeaweedFS(tmp_path)
    connecting = to(server, "made-when-it-is-up", create_bucket=True, wait_s=60)
    waiting = asyncio.create_task(_opened(connecting))
    await asyncio.sleep(2)
    try:
        await asyncio.to_thread(server.start)
        await waiting
    finally:
        server.stop()
    assert [text.split(":")[0] for text in caplog.messages] == ["waiting up to 60 s for the store at http"]


async def _opened(connecting: Any) -> None:
    async with connecting as queue:
        await queue.submit("do", {})


async def test_waiting_comes_to_an_end() -> None:
    endpoint = f"http://127.0.0.1:{servers.free_ports(1)[0]}"
    clock = SystemClock()
    began = clock.monotonic()
    with pytest.raises(Unavailable, match="does not answer"):
        await connect(endpoint, "a-bucket", access_key_id="k", secret_access_key="s", wait_s=2)
    assert 2 <= clock.monotonic() - began < 5


@pytest.mark.server
async def test_a_refusal_is_not_waited_for(seaweedfs: servers.Server) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(BucketMissing):
            await to(seaweedfs, "not-there", wait_s=60)


@pytest.mark.parametrize(
    ("wait_s", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)]
)
def test_a_wait_that_makes_no_sense_is_refused(wait_s: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="wait_s must"):
        connect("memory:", wait_s=wait_s)


# --- a queue that is never closed ----------------------------------------------------------

NEVER_CLOSED = """
import asyncio, sys
from buquet import Worker, WorkerRunOptions, connect

async def main():
    queue = await connect()
    task = await queue.submit("do", {})
    if sys.argv[1] == "error":
        raise LookupError("the user's own")
    worker = Worker(queue)

    @worker.task("do")
    async def handle(input):
        return None

    await worker.run(WorkerRunOptions(burst=True, with_monitor=False))
    print((await queue.get(task.id)).status)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["memory", "local", pytest.param("seaweedfs", marks=pytest.mark.server)])
@pytest.mark.parametrize("end", ["well", "error"])
def test_it_makes_no_noise_at_exit(
    kind: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Callable[[str], Any]
) -> None:
    if kind == "seaweedfs":
        server = running(kind)
        monkeypatch.setenv("S3_ENDPOINT", server.endpoint)
        monkeypatch.setenv("S3_BUCKET", server.new_bucket())
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS_KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET_ACCESS_KEY)
    else:
        monkeypatch.setenv("S3_ENDPOINT", "memory:" if kind == "memory" else f"local:{tmp_path}/queue.db")
    script = textwrap.dedent(NEVER_CLOSED)
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", script, end],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if end == "well":
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "completed\n", "")
    else:
        assert ended.returncode == 1
        assert ended.stderr.startswith("Traceback")
        assert ended.stderr.endswith("LookupError: the user's own\n")


async def _nothing(_input: object) -> None:
    pass


def test_a_connection_that_was_not_awaited_says_so() -> None:
    with pytest.raises(AttributeError, match=r"await connect"):
        connect("memory:").submit  # type: ignore[attr-defined]  # noqa: B018
