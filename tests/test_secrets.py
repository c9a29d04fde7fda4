"""Credentials appear in nothing that anybody may see: logs, errors, reprs, output, the bucket.

Every test talks to a server with keys that are easy to recognise, at the most talkative level of
logging, of this package and of all that it uses.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import servers
from liar import Act, Liar, answer, error

from buquet import Queue, Worker, WorkerRunOptions, connect
from buquet._core.sign import Signer
from buquet.clock import SystemClock
from buquet.config import AccessKeys, Settings
from buquet.connection import open_store
from buquet.errors import (
    BadEndpoint,
    BuquetError,
    ClockSkewed,
    ExpiredCredentials,
    NoCredentials,
    OutcomeUnknown,
    StoreError,
    Unavailable,
    UnknownAccessKey,
    WrongRegion,
    WrongSecret,
)
from buquet.protocol.keys import Keys
from buquet.s3.credentials import StaticCredentials
from buquet.store.interface import IfAbsent
from buquet.store.retry import Retrying, RetryLimits

KEY_ID, SECRET, TOKEN = "AKIATELLTALE", "tell/tale+secret", "tell//tale==token"
KEYS = AccessKeys(KEY_ID, SECRET, TOKEN)
SIGNED = "Signature="
"""Of an `Authorization` header: good for whoever finds it within a quarter of an hour."""

Show = Callable[..., str]


@pytest.fixture
def bucket(seaweedfs: servers.Server) -> str:
    """An empty bucket. Asked for before `shown`, or botocore would tell how it was made."""
    return seaweedfs.new_bucket()


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Show:
    """Return a function that gives all that was logged and printed, and errors in every form."""
    caplog.set_level(logging.DEBUG)
    for name in ("aiohttp", "asyncio", "botocore", "buquet"):
        caplog.set_level(logging.DEBUG, name)

    def everything(*errors: BaseException) -> str:
        output = capfd.readouterr()
        forms = ["".join(traceback.format_exception(each)) for each in errors]
        for each in itertools.chain.from_iterable(map(chain_of, errors)):
            forms += [str(each), repr(each), repr(vars(each))]
        return "\n".join([caplog.text, output.out, output.err, *forms])

    return everything


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, and what it was raised in the middle of."""
    if error is not None:
        yield error
        yield from chain_of(error.__cause__)
        yield from chain_of(error.__context__)


def assert_hidden(text: str, *secrets: str) -> None:
    for secret in secrets or (KEY_ID, SECRET, TOKEN, SIGNED):
        assert secret not in text


def settings(endpoint: str) -> Settings:
    return Settings.resolve(
        endpoint, "jobs", access_key_id=KEY_ID, secret_access_key=SECRET, session_token=TOKEN, env={}
    )


@asynccontextmanager
async def queue_on(endpoint: str) -> AsyncIterator[Queue]:
    """Open a queue that gives up soon."""
    clock = SystemClock()
    store = open_store(settings(endpoint), clock)
    queue = Queue(Retrying(store.once, clock, RetryLimits(attempts=2)), Keys())
    try:
        yield queue
    finally:
        await queue.close()


# --- failures ------------------------------------------------------------------------------


async def test_a_server_that_refuses_the_keys(seaweedfs: servers.Server, bucket: str, shown: Show) -> None:
    at = seaweedfs.endpoint, bucket
    with pytest.raises(WrongSecret) as wrong:
        await connect(*at, access_key_id=servers.ACCESS_KEY_ID, secret_access_key=SECRET)
    with pytest.raises(UnknownAccessKey) as unknown:
        await connect(*at, access_key_id=KEY_ID, secret_access_key=SECRET, session_token=TOKEN)
    assert_hidden(shown(wrong.value, unknown.value), servers.ACCESS_KEY_ID, KEY_ID, SECRET, TOKEN, SIGNED)


# What services are known to say beside code and message.
REPEATED = (
    f"<Token-0>{TOKEN}</Token-0><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>"
    f"<SignatureProvided>{SIGNED}</SignatureProvided><StringToSign>{SECRET}</StringToSign>"
)
LOCATION = f"https://elsewhere/jobs?X-Amz-Security-Token={TOKEN}&X-Amz-Credential={KEY_ID}&X-Amz-{SIGNED}f00"


def then_hangs_up(said: bytes) -> Act:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    return act


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (error(400, "ExpiredToken", REPEATED), ExpiredCredentials),
        (error(403, "SignatureDoesNotMatch", REPEATED), WrongSecret),
        (error(403, "InvalidAccessKeyId", REPEATED), UnknownAccessKey),
        (error(403, "RequestTimeTooSkewed", REPEATED), ClockSkewed),
        (error(400, "Whatever", REPEATED), StoreError),
        (error(500, "InternalError", REPEATED), OutcomeUnknown),
        (error(429, "TooManyRequests", REPEATED), Unavailable),
        (answer(307, location=LOCATION), StoreError),
        (error(301, "PermanentRedirect", "<Region>mars</Region>", location=LOCATION), WrongRegion),
        (then_hangs_up(b""), OutcomeUnknown),
        (then_hangs_up(b"this is not HTTP\r\n\r\n"), OutcomeUnknown),
        (then_hangs_up(answer(200, b"cut off", content_length="99")), OutcomeUnknown),
    ],
    ids=map(str, itertools.count(1)),
)
async def test_an_answer_that_fails_a_submit(act: Act, kind: type[BuquetError], shown: Show) -> None:
    async with Liar(act) as liar, queue_on(liar.endpoint) as queue:
        with pytest.raises(kind) as caught:
            await queue.submit("do", None)
        assert TOKEN in "".join(liar.requests), "it was sent, so it could have been shown"
    assert_hidden(shown(caught.value))


async def test_a_server_that_is_down(shown: Show) -> None:
    (port,) = servers.free_ports(1)
    async with queue_on(f"http://127.0.0.1:{port}") as queue:
        with pytest.raises(Unavailable) as caught:
            await queue.submit("do", None)
    assert_hidden(shown(caught.value))


@pytest.mark.parametrize("act", [error(403, "AccessDenied"), then_hangs_up(b"")], ids=["refused", "lost"])
async def test_the_secret_is_no_local_variable_of_a_failed_request(act: Act) -> None:
    """Services that collect errors also collect the variables of each frame."""
    async with Liar(act) as liar, queue_on(liar.endpoint) as queue:
        with pytest.raises(StoreError) as caught:
            await queue.submit("do", None)
    trace = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    text = "".join(trace.format())
    assert "_attempt" in text, "the frame that sends is among them"
    assert_hidden(text, SECRET)


@pytest.mark.parametrize(
    "endpoint",
    [
        f"http://{KEY_ID}:{SECRET}@host",
        f"http://{KEY_ID}:tellsecret@host:port",
        f"{KEY_ID}:{SECRET}@host",
        f"https://host/jobs/key?X-Amz-Security-Token={TOKEN}&X-Amz-{SIGNED}f00",
        f"host/jobs/key?X-Amz-Security-Token={TOKEN}&X-Amz-{SIGNED}f00",
    ],
)
def test_an_endpoint_with_keys_in_it(endpoint: str, shown: Show) -> None:
    with pytest.raises(BadEndpoint) as caught:
        Settings.resolve(endpoint, "jobs", env={})
    assert_hidden(shown(caught.value), KEY_ID, SECRET, "tellsecret", TOKEN, SIGNED)


def test_half_a_pair_of_keys(shown: Show) -> None:
    with pytest.raises(NoCredentials) as caught:
        Settings.resolve("http://host", "jobs", secret_access_key=SECRET, session_token=TOKEN, env={})
    assert_hidden(shown(caught.value))


# --- success -------------------------------------------------------------------------------


async def test_a_task_that_fails(seaweedfs: servers.Server, bucket: str, shown: Show) -> None:
    """Nor does anything in the bucket know who wrote it."""
    keys = {"access_key_id": servers.ACCESS_KEY_ID, "secret_access_key": servers.SECRET_ACCESS_KEY}
    async with connect(seaweedfs.endpoint, bucket, **keys) as queue:
        task = await queue.submit("fails", {"n": 1}, max_retries=0)
        worker = Worker(queue)

        @worker.task("fails")
        async def fails(input: object) -> None:
            raise ValueError("no")

        await worker.run(WorkerRunOptions(burst=True))
        done = await queue.get(task.id)
        assert done is not None
        assert done.status == "failed"
        objects = [await queue.store.get(key) for key in await keys_in(queue)]
    assert len(objects) >= 2
    secrets = (servers.ACCESS_KEY_ID, servers.SECRET_ACCESS_KEY, SIGNED)
    assert_hidden(f"{shown()} {done!r} {objects}", *secrets)


async def keys_in(queue: Queue) -> list[str]:
    pages = [await queue.store.list(prefix) for prefix in ("tasks/", "ready/", "failed/", "workers/")]
    return ["buquet.json", *(entry.key for page in pages for entry in page.entries)]


async def test_keys_from_a_profile(shown: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    lines = (f"aws_access_key_id={KEY_ID}", f"aws_secret_access_key={SECRET}", f"aws_session_token={TOKEN}")
    file.write_text("\n".join(["[work]", *lines]))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    async with Liar(error(403, "AccessDenied", REPEATED)) as liar:
        store = open_store(Settings.resolve(liar.endpoint, "jobs", profile="work", env={}), SystemClock())
        with pytest.raises(StoreError) as caught:
            await store.put("a", b"", IfAbsent(None))
        await store.close()
        assert TOKEN in liar.requests[0]
    # botocore tells which key it has found, at INFO or below, never the secret.
    assert_hidden(shown(caught.value), SECRET, TOKEN, SIGNED)


def test_the_command_line(seaweedfs: servers.Server, bucket: str) -> None:
    """The demo prints its table, its workers' complaints, and errors."""
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": servers.SECRET_ACCESS_KEY,
    }
    options = ["--endpoint", seaweedfs.endpoint, "--bucket", bucket, "--tasks", "20"]
    good = demo(options, environment)
    assert good.returncode == 0, good.stderr
    bad = demo(options, environment | {"AWS_SECRET_ACCESS_KEY": SECRET})
    assert bad.returncode != 0
    assert "AWS_SECRET_ACCESS_KEY" in bad.stderr
    text = good.stdout + good.stderr + bad.stdout + bad.stderr
    assert_hidden(text, servers.ACCESS_KEY_ID, servers.SECRET_ACCESS_KEY, SECRET, SIGNED)


def demo(options: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "buquet", "demo", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


# --- objects -------------------------------------------------------------------------------


async def test_no_object_shows_them() -> None:
    async with queue_on("http://127.0.0.1:9") as queue:
        configured = settings("http://127.0.0.1:9")
        store = queue.store.once  # type: ignore[attr-defined]
        objects = [
            configured,
            KEYS,
            StaticCredentials(KEYS),
            connect("http://127.0.0.1:9", "jobs", access_key_id=KEY_ID, secret_access_key=SECRET),
            queue,
            queue.store,
            store,
            store._client,
            store._client.credentials,
            Worker(queue),
        ]
        assert_hidden(" ".join(f"{thing} {thing!r} {[thing]}" for thing in objects))
        signer = Signer(KEY_ID, SECRET, "mars", TOKEN)
        assert_hidden(f"{signer} {signer!r}", SECRET, TOKEN)
