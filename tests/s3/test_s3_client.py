"""The client on the wire: one attempt, nothing hidden, and nothing left behind.

Each test runs on both wires: straight on aiohttp's connections, on either event loop, and by its
`ClientSession`.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from liar import Liar, answer

from buquet.clock import SystemClock
from buquet.config import AccessKeys
from buquet.s3 import direct, session
from buquet.s3.client import S3Client, _Slots
from buquet.s3.credentials import StaticCredentials
from buquet.s3.endpoint import Endpoint
from buquet.s3.exchange import Limits, TransportError

now = SystemClock().unix
KEYS = AccessKeys("AKIDKEY", "hunter2", "sesame")


@pytest.fixture(params=["direct", "direct on uvloop", "session"], autouse=True)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "session":
        monkeypatch.setattr(direct, "fits", lambda: False)
    return request.param.partition(" ")[0]


@pytest.fixture(autouse=True)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """The event loop of a test, in place of the one that serves all others."""
    is_uvloop = "uvloop" in request.node.callspec.params["wire"]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if is_uvloop else None) as runner:
        yield runner


def client_of(endpoint: str, **limits: float) -> S3Client:
    address = Endpoint.resolve(endpoint, "jobs", path_style=True)
    return S3Client(address, "us-east-1", StaticCredentials(KEYS), Limits(**limits))


async def test_an_answer_comes_back_as_it_is():
    # Neither unpacked, nor followed, nor are cookies kept.
    strange = answer(307, b"\x1f\x8b no gzip", content_encoding="gzip", location="/else", set_cookie="a=b")
    async with Liar(strange) as liar:
        # By name: cookie jars leave hosts that are IP addresses out.
        client = client_of(liar.endpoint.replace("127.0.0.1", "localhost"))
        response = await client.get("a", now)
        await client.get("a", now)
        await client.close()
    assert (response.status, response.body) == (307, b"\x1f\x8b no gzip")
    assert response.headers["ETag"] == response.headers["etag"]
    assert len(liar.requests) == 2
    assert "cookie" not in liar.requests[1].lower()
    assert liar.connections == 1, "the connection was not kept alive"


async def test_keys_reach_the_server_encoded_once():
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint)
        await client.put("a b/../%2F+é", b"", {}, now)
        await client.list("p/", "p/ä b", 7, now)
        await client.close()
    put, listing = (request.split("\r\n")[0] for request in liar.requests)
    assert put == "PUT /jobs/a%20b/../%252F%2B%C3%A9 HTTP/1.1"
    query = "encoding-type=url&list-type=2&max-keys=7&prefix=p%2F&start-after=p%2F%C3%A4%20b"
    assert listing == f"GET /jobs?{query} HTTP/1.1"
    assert "content-length: 0" in liar.requests[0].lower()


async def refuse(writer: asyncio.StreamWriter) -> None:
    """Take the request and hang up."""


async def truncate(writer: asyncio.StreamWriter) -> None:
    writer.write(answer(200, b"0123456789")[:-3])
    await writer.drain()


async def truncate_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n")
    await writer.drain()


async def overrun(writer: asyncio.StreamWriter) -> None:
    writer.write(answer(200, b"0123456789", content_length="4"))
    await writer.drain()


async def babble(writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 smtp.example ESMTP\r\n\r\n")
    await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(answer(200, b"", content_length="1000"))
    for _ in range(100):
        writer.write(b"x")
        await asyncio.sleep(0.05)


async def stay_silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("act", "limits"),
    [
        (refuse, {}),
        (truncate, {}),
        (truncate_chunks, {}),
        (overrun, {}),
        (babble, {}),
        (drip, {"total_s": 0.4}),
        (stay_silent, {"read_s": 0.4}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_no_complete_answer_is_a_failure_that_may_have_been_sent(act, limits):
    async with Liar(act) as liar:
        client = client_of(liar.endpoint, **limits)
        async with asyncio.timeout(3):
            with pytest.raises(TransportError) as caught:
                await client.put("a", b"body", {}, now)
        await client.close()
    assert caught.value.sent
    assert_no_secret_in(caught.value)


def assert_no_secret_in(error: BaseException) -> None:
    """Look through an error and whatever hangs on it."""
    seen: list[BaseException | None] = [error]
    while seen:
        if (current := seen.pop()) is None:
            continue
        said = f"{current!s} {current!r} {vars(current)}"
        for secret in ("hunter2", "sesame", "AKIDKEY"):
            assert secret not in said
        seen += [current.__cause__, current.__context__]


async def test_a_lost_reply_on_a_kept_connection_is_not_hidden_by_a_resend():
    async with Liar(answer(), refuse, answer()) as liar:
        client = client_of(liar.endpoint)
        await client.put("a", b"1", {}, now)
        with pytest.raises(TransportError) as caught:
            await client.put("a", b"2", {}, now)
        await client.close()
    assert caught.value.sent
    assert len(liar.requests) == 2


@pytest.mark.parametrize("part", [b"", answer(500, b"late")[:-2]], ids=["before its answer", "within it"])
async def test_a_request_given_up_leaves_nothing_for_the_next(part):
    release = asyncio.Event()

    async def answer_late(writer: asyncio.StreamWriter) -> None:
        writer.write(part)
        await release.wait()
        writer.write(answer(500, b"late")[len(part) :])
        await asyncio.sleep(60)

    async with Liar(answer_late, answer(200, b"next")) as liar:
        client = client_of(liar.endpoint)
        given_up = asyncio.create_task(client.get("a", now))
        while not liar.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        release.set()
        response = await client.get("a", now)
        await client.close()
    assert (response.status, response.body) == (200, b"next")
    assert liar.connections == 2


@pytest.mark.parametrize("wire", ["direct", "direct on uvloop"], indirect=True)  # a session takes it
@pytest.mark.parametrize(
    "unasked",
    [answer(500, b"whole"), b"HTTP/1.1 500 Bad\r\nx-a: ", b"HTTP/1.1 408 Time-out\r\ncontent-le", b"\r\n"],
    ids=["all of it", "its head's beginning", "half a header", "a line's end"],
)
async def test_an_answer_that_nobody_asked_for_is_not_taken(unasked):
    async def talk_on(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, b"asked for"))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(unasked)
        await asyncio.sleep(60)

    async with Liar(talk_on, answer(200, b"next")) as liar:
        client = client_of(liar.endpoint)
        assert (await client.get("a", now)).body == b"asked for"
        await asyncio.sleep(0.1)
        assert (await client.get("a", now)).body == b"next"
        await client.close()
    assert liar.connections == 2


async def test_a_connection_that_closed_in_the_pool_is_not_used():
    async def answer_once(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, b"first"))
        await writer.drain()

    async with Liar(answer_once, answer(200, b"second")) as liar:
        client = client_of(liar.endpoint)
        await client.get("a", now)
        await asyncio.sleep(0.05)
        assert (await client.get("a", now)).body == b"second"
        await client.close()
    assert len(liar.requests) == 2


CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n3;x=y\r\nfgh\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "bytes_", "status", "body"),
    [
        ("get", CHUNKS, 200, b"abcdefgh"),
        ("get", b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, b"then"), 200, b"then"),
        ("get", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + answer(412), 412, b""),
        ("get", answer(200, b"x" * 3_000_000), 200, b"x" * 3_000_000),
        ("head", answer(200, b"", content_length="7"), 200, b""),
        ("delete", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ("get", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, b""),
    ],
    ids=["chunks", "100 Continue", "103 Early Hints", "many pieces", "HEAD", "204", "304"],
)
async def test_answers_of_every_shape_leave_the_connection_fit_for_more(method, bytes_, status, body):
    async with Liar(bytes_) as liar:
        client = client_of(liar.endpoint)
        for _ in range(3):
            response = await getattr(client, method)("a", now)
            assert (response.status, response.body) == (status, body)
        await client.close()
    assert liar.connections == 1


async def test_an_answer_without_a_length_ends_with_its_connection():
    async def answer_and_close(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        await writer.drain()

    async with Liar(answer_and_close) as liar:
        client = client_of(liar.endpoint)
        for _ in range(2):
            assert (await client.get("a", now)).body == b"all of it"
        await client.close()
    assert liar.connections == 2


@pytest.mark.parametrize("wire", ["direct", "direct on uvloop"], indirect=True)  # a session reads to the end
async def test_where_answers_to_a_put_have_no_length_the_second_is_read_whole():
    async def answer_and_close(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 409 Conflict\r\n\r\n<Error/>")
        await writer.drain()

    async with Liar(answer_and_close) as liar:
        client = client_of(liar.endpoint)
        with pytest.raises(TransportError, match="without a length") as caught:
            await client.put("a", b"1", {}, now)
        assert caught.value.sent
        for _ in range(2):
            response = await client.put("a", b"1", {}, now)
            assert (response.status, response.body) == (409, b"<Error/>")
        await client.close()
    assert liar.connections == 3


@pytest.mark.parametrize("wire", ["direct", "direct on uvloop"], indirect=True)
async def test_each_exchange_is_broken_off_in_its_own_time():
    """One timer serves them all."""
    async with Liar(stay_silent) as liar:
        client = client_of(liar.endpoint, read_s=0.4)

        async def ask_after(pause_s: float) -> float:
            await asyncio.sleep(pause_s)
            began = time.monotonic()
            with pytest.raises(TransportError, match=r"no answer in 0.4 s"):
                await client.put("a", b"1", {}, now)
            return time.monotonic() - began

        took_s = await asyncio.gather(*(ask_after(pause_s) for pause_s in (0.0, 0.1, 0.3, 0.8)))
        await client.close()
    assert all(0.39 < one_s < 0.6 for one_s in took_s), took_s


async def test_an_idle_connection_is_closed_and_not_used_again(monkeypatch):
    monkeypatch.setattr(direct, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(session, "KEEP_ALIVE_S", 0.2)
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint, read_s=0.5)
        for _ in range(2):
            await client.get("a", now)
        assert liar.connections == 1
        await asyncio.sleep(0.3)
        await client.get("a", now)
        assert liar.connections == 2
        async with asyncio.timeout(2):
            while liar._serving:
                await asyncio.sleep(0.01)
        await client.close()


async def test_waiting_and_idling_take_no_cpu_time():
    """From Python 3.12 on asyncio's own loop spins after a `writelines` with an empty item."""

    async def answer_late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        writer.write(answer())
        await asyncio.sleep(60)

    async with Liar(answer_late) as liar:
        client = client_of(liar.endpoint)
        began = time.process_time()
        await client.get("a", now)
        await asyncio.sleep(0.5)
        assert time.process_time() - began < 0.2
        await client.close()


async def test_a_large_body_that_is_taken_slowly_by_tls_is_no_silence():
    """What is unsent is not seen there."""
    assert direct.Direct("https://127.0.0.1", Limits(read_s=1, total_s=9))._quiet_s(2 << 16) == 9
    assert direct.Direct("https://127.0.0.1", Limits(read_s=1, total_s=9))._quiet_s(1) == 1
    assert direct.Direct("http://127.0.0.1", Limits(read_s=1, total_s=9))._quiet_s(2 << 16) == 1


class Choosy(Liar):
    """Answers its one request a connection before it has read the body, or reads that slowly."""

    pause_s = 0.0

    async def take(self, reader: asyncio.StreamReader) -> str:
        if len(self.requests) == self.connections:
            await asyncio.sleep(0.2)
            return ""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if self.pause_s:
            for _ in range(16):
                await reader.readexactly(BIG // 16)
                await asyncio.sleep(self.pause_s)
        return head


BIG = 16 << 20


async def test_a_refusal_before_the_body_was_sent_is_heard_and_its_connection_not_kept():
    async with Choosy(answer(403, b"no")) as liar:
        client = client_of(liar.endpoint)
        for _ in range(2):
            response = await client.put("a", bytes(BIG), {}, now)
            assert (response.status, response.body) == (403, b"no")
        await client.close()
    assert liar.connections == 2


async def test_a_body_that_is_taken_slowly_is_no_silence():
    async with Choosy(answer(200)) as liar:
        liar.pause_s = 0.1
        client = client_of(liar.endpoint, read_s=1.0)
        assert (await client.put("a", bytes(BIG), {}, now)).status == 200
        await client.close()


class Deaf:
    """A server that reads nothing until it is asked to."""

    def __enter__(self) -> Deaf:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def hear(self) -> int:
        """Read to the connection's end; return how many bytes came."""
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(self._socket)
        heard = 0
        with connection, suppress(ConnectionResetError):
            while data := await loop.sock_recv(connection, 1 << 16):
                heard += len(data)
        return heard


@pytest.mark.parametrize("wire", ["direct", "direct on uvloop"], indirect=True)  # a session lingers
async def test_what_a_cancelled_request_had_not_sent_is_dropped():
    with Deaf() as server:
        client = client_of(server.endpoint)
        putting = asyncio.create_task(client.put("a", bytes(BIG), {}, now))
        await asyncio.sleep(0.2)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        async with asyncio.timeout(3):
            assert await server.hear() < BIG
        await client.close()


@pytest.mark.parametrize("wire", ["direct", "direct on uvloop"], indirect=True)  # a session hangs
async def test_closing_ends_a_request_that_is_stuck():
    with Deaf() as server:
        client = client_of(server.endpoint)
        putting = asyncio.create_task(client.put("a", bytes(BIG), {}, now))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(1):
            await client.close()
            with pytest.raises(TransportError) as caught:
                await putting
    assert caught.value.sent


async def test_news_that_the_answer_will_come_is_no_silence():
    async def process(writer: asyncio.StreamWriter) -> None:
        for _ in range(6):
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await asyncio.sleep(0.2)
        writer.write(answer(200, b"at last"))
        await writer.drain()

    async with Liar(process) as liar:
        client = client_of(liar.endpoint, read_s=0.6)
        assert (await client.get("a", now)).body == b"at last"
        await client.close()


async def test_a_header_cannot_smuggle_another():
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint)
        for value in ('"1"\r\nx-more: 1', '"1"\n', '"1"\r'):
            with pytest.raises(ValueError, match=r"(?i)line ?break|newline|character"):
                await client.put("a", b"", {"x-smuggled": f"a{value}b"}, now)
        await client.close()
    assert liar.requests == []


async def test_tls_that_does_not_come_about_means_not_sent():
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint.replace("http:", "https:"), connect_s=0.3)
        with pytest.raises(TransportError) as caught:
            await client.put("a", b"", {}, now)
        await client.close()
    assert not caught.value.sent


async def test_the_time_for_connecting_is_part_of_the_whole(wire):
    with Deaf() as server:
        client = client_of(server.endpoint.replace("http:", "https:"), connect_s=5.0, total_s=0.4)
        async with asyncio.timeout(2):
            with pytest.raises(TransportError) as caught:
                await client.put("a", b"", {}, now)
        await client.close()
    assert caught.value.sent == (wire == "session"), "a session does not tell"


async def test_nobody_there_means_not_sent():
    async with Liar(answer()) as liar:
        pass
    client = client_of(liar.endpoint)
    with pytest.raises(TransportError, match="Cannot connect") as caught:
        await client.put("a", b"", {}, now)
    await client.close()
    assert not caught.value.sent


async def test_certificates_are_verified():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(Path(__file__).with_name("untrusted.pem"))
    async with Liar(answer(), tls=tls) as liar:
        client = client_of(liar.endpoint)
        with pytest.raises(TransportError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await client.get("a", now)
        await client.close()
    assert not caught.value.sent
    assert liar.requests == []


async def test_a_request_is_signed_only_when_it_is_sent():
    release = asyncio.Event()

    async def wait(writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer())
        await writer.drain()

    signed: list[str] = []

    def sign(name: str) -> float:
        signed.append(name)
        return now()

    async with Liar(wait, answer()) as liar:
        client = client_of(liar.endpoint, connections=1)
        first = asyncio.create_task(client.get("a", lambda: sign("first")))
        second = asyncio.create_task(client.get("b", lambda: sign("second")))
        while not liar.requests:
            await asyncio.sleep(0.01)
        assert signed == ["first"]
        release.set()
        await asyncio.gather(first, second)
        await client.close()
    assert signed == ["first", "second"]


@pytest.mark.parametrize("wire", ["direct", "direct on uvloop"], indirect=True)
async def test_a_place_that_a_cancelled_request_was_given_goes_to_the_next():
    slots = _Slots(1)
    slots.free -= 1
    first, second, third = (asyncio.create_task(slots.wait()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    slots.leave()  # to the first, which is cancelled before it takes note
    first.cancel()
    async with asyncio.timeout(1):
        await third
    assert first.cancelled()
    assert second.cancelled()
    slots.leave()
    assert slots.free == 1


async def test_what_the_hook_raises_stops_the_request():
    def too_late() -> float:
        raise LookupError

    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint, connections=1)
        for _ in range(2):
            with pytest.raises(LookupError):
                await client.put("a", b"", {}, too_late)
        assert liar.requests == []
        assert (await client.get("a", now)).status == 200, "the slot was not given back"
        await client.close()


async def test_never_more_sockets_than_connections():
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        writer.write(answer(200, b"", connection="close"))
        await writer.drain()

    class Counting(Liar):
        most = 0

        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.most = max(self.most, len(self._serving) + 1)
            await super()._serve(reader, writer)

    async with Counting(slow) as liar:
        client = client_of(liar.endpoint, connections=4)
        await asyncio.gather(*(client.get("a", now) for _ in range(40)))
        await client.close()
    # A socket that is being closed may overlap its successor.
    assert liar.most <= 8


@pytest.mark.parametrize(
    ("part", "other"),
    [("ResponseHandler", object), ("ClientRequest", lambda url: url), ("aiohttp", object())],
)
@pytest.mark.parametrize("wire", ["direct", "direct on uvloop"], indirect=True)
async def test_another_aiohttp_is_used_by_its_session(part, other, monkeypatch):
    assert direct.fits()
    with monkeypatch.context() as patch:
        patch.setattr(direct, part, other)
        assert not direct.fits()


async def test_which_wire_serves(wire):
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint)
        await client.get("a", now)
        assert type(client._transport._wire).__name__.lower() == wire
        await client.close()


@pytest.mark.parametrize("bypass", [False, True])
async def test_the_proxy_of_the_environment(monkeypatch, bypass):
    async with Liar(answer(204)) as proxy, Liar(answer(200)) as liar:
        monkeypatch.setenv("http_proxy", proxy.endpoint.replace("//", "//user:pass@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1" if bypass else "")
        client = client_of(liar.endpoint)
        response = await client.get("a", now)
        await client.close()
    assert response.status == (200 if bypass else 204)
    if not bypass:
        assert proxy.requests[0].startswith(f"GET {liar.endpoint}/jobs/a HTTP/1.1")
        assert "proxy-authorization: basic dxnlcjpwyxnz" in proxy.requests[0].lower()


async def test_a_closed_client_says_so():
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint)
        await client.get("a", now)
        await client.close()
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.get("a", now)


async def test_another_event_loop_is_told_to_connect_itself():
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint)
        await client.get("a", now)
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.get("a", now))
        await client.close()


LEFT_OPEN = {
    "in a local variable": "asyncio.run(main([]))",
    "in a global one": "keep = []; asyncio.run(main(keep))",
    "in a cycle": "keep = []; keep.append(keep); asyncio.run(main(keep)); del keep",
    "twice": "asyncio.run(main([])); asyncio.run(main([]))",
    "in a loop closed by hand": (
        "keep = []; loop = asyncio.new_event_loop(); loop.run_until_complete(main(keep)); loop.close()"
    ),
}


@pytest.mark.parametrize("how", LEFT_OPEN)
async def test_a_client_that_nobody_closes_leaves_no_noise(how, wire):
    script = f"""
        import asyncio, sys
        sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}
        from test_s3_client import client_of, direct, now
        direct.fits = lambda: {wire == "direct"}

        async def main(keep):
            client = client_of(sys.argv[1])
            keep.append(client)
            assert (await client.get("a", now)).status == 200

        {LEFT_OPEN[how]}
    """
    async with Liar(answer()) as liar:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(script), liar.endpoint, stderr=asyncio.subprocess.PIPE
        )
        _, noise = await process.communicate()
    assert (process.returncode, noise.decode()) == (0, "")


async def test_a_client_that_is_dropped_closes_its_connections():
    async with Liar(answer()) as liar:
        client = client_of(liar.endpoint)
        await client.get("a", now)
        assert len(liar._serving) == 1
        del client
        gc.collect()
        async with asyncio.timeout(5):
            while liar._serving:
                await asyncio.sleep(0.01)
