"""The S3 store against real servers, and against a server that answers as it is told."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from hashlib import md5

import pytest
import servers
from liar import Liar, answer, error

from buquet.clock import StoreClock, SystemClock
from buquet.config import Settings
from buquet.errors import (
    AccessDenied,
    BadEndpoint,
    BucketMissing,
    ClockSkewed,
    ExpiredCredentials,
    StoreError,
    UnfitStore,
    UnknownAccessKey,
    WrongRegion,
    WrongSecret,
)
from buquet.s3.exchange import Limits
from buquet.store.interface import (
    FENCE_S,
    Always,
    FenceExpired,
    IfAbsent,
    IfMatches,
    Undecided,
)
from buquet.store.s3 import S3Store
from buquet.store.s3 import open_store as open_s3

CLOCK = SystemClock()
AWKWARD = ["a/b.json", "sp ace/+%&?#=;\"'<>~é", "t/%2F%20", "d/a..b/.c"]


class WrongClock(SystemClock):
    """A wall clock that is an hour slow."""

    def unix(self) -> float:
        return super().unix() - 3600


def connect(endpoint: str, bucket: str = "jobs", clock: SystemClock = CLOCK, **arguments: str) -> S3Store:
    keys = {"access_key_id": servers.ACCESS_KEY_ID, "secret_access_key": servers.SECRET_ACCESS_KEY}
    settings = Settings.resolve(endpoint, bucket, env={}, **{**keys, **arguments})
    return open_s3(settings, StoreClock(clock), Limits(read_s=10))


# --- real servers ----------------------------------------------------------------------------


@pytest.fixture(
    params=[pytest.param(n, marks=pytest.mark.server) for n in ("seaweedfs", "localstack", "ministack")]
)
def server(request, running) -> servers.Server:
    return running(request.param)


@pytest.fixture
def seaweedfs(running) -> servers.Server:
    return running("seaweedfs")


@pytest.mark.parametrize("body", [b"", b'{"x": 1}'])
@pytest.mark.parametrize("key", AWKWARD)
async def test_an_object_lives(server, key, body):
    store = connect(server.endpoint, server.new_bucket())
    prefix = key.rpartition("/")[0] + "/"
    assert await store.get(key) is None
    assert await store.head(key) is None
    assert await store.put(key, body, IfMatches("0" * 32)) is None

    written = await store.put(key, body, IfAbsent(CLOCK.monotonic()))
    assert written is not None
    assert '"' not in written.etag
    assert await store.put(key, b"other", IfAbsent(CLOCK.monotonic())) is None
    blob, entry = await store.get(key), await store.head(key)
    assert blob is not None
    assert entry is not None
    assert (blob.body, blob.etag, entry.size, entry.etag) == (body, written.etag, len(body), written.etag)
    assert abs(blob.date_ms - CLOCK.unix() * 1000) < 5000
    assert abs(blob.modified_ms - blob.date_ms) < 5000
    (listed,) = (await store.list(prefix)).entries
    assert (listed.key, listed.size, listed.etag) == (key, len(body), written.etag)

    replaced = await store.put(key, b"second", IfMatches(written.etag))
    assert replaced is not None
    assert await store.put(key, b"third", IfMatches(written.etag)) is None
    assert await store.put(key, b"fourth", Always()) is not None
    await store.delete(key, read_at=CLOCK.monotonic())
    await store.delete(key, read_at=CLOCK.monotonic())
    assert await store.get(key) is None
    await store.close()


async def test_many_are_listed_by_pages_and_deleted_at_once(server):
    store = connect(server.endpoint, server.new_bucket())
    keys = [f"l/{n}" for n in range(5)] + [f"m/{name}" for name in ("a b", "a+b", "a&b", "é")]
    await asyncio.gather(*(store.put(key, b"", Always()) for key in keys))
    first = await store.list("l/", limit=2)
    rest = await store.list("l/", after="l/1", limit=9)
    assert ([e.key for e in first.entries], first.truncated) == (keys[:2], True)
    assert ([e.key for e in rest.entries], rest.truncated) == (keys[2:5], False)
    assert await store.delete_many([*keys[1:], "l/none"], read_at=CLOCK.monotonic()) == []
    assert [e.key for prefix in ("l/", "m/") for e in (await store.list(prefix)).entries] == keys[:1]
    assert (await store.list("none/")).entries == ()
    await store.close()


async def test_a_bucket_is_created_once_and_missed_before(server):
    store = connect(server.endpoint, "made-by-buquet")
    requests = [  # not an If-Match, which SeaweedFS answers with 412 even here
        lambda: store.get("a"),
        lambda: store.put("a", b"", IfAbsent(None)),
        lambda: store.delete("a", read_at=None),
        lambda: store.delete_many(["a"], read_at=None),
        lambda: store.list("a/"),
    ]
    for request in requests:
        with pytest.raises(
            BucketMissing, match=r"'made-by-buquet' does not exist .*create_bucket=True"
        ) as caught:
            await request()
        assert (caught.value.status, caught.value.code) == (404, "NoSuchBucket")
        assert caught.value.request_id
    await store.create_bucket()
    await store.create_bucket()
    assert await store.get("a") is None
    await store.close()


async def test_one_winner_of_a_race(server):
    store = connect(server.endpoint, server.new_bucket())

    async def race(name: str, condition) -> int:
        # Bodies differ throughout, because equal bodies have equal ETags.
        puts = [store.put("a", f"{name} {n}".encode(), condition) for n in range(16)]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert all(
            o is None or not isinstance(o, BaseException) or isinstance(o, Undecided) for o in outcomes
        )
        return sum(not isinstance(o, BaseException) and o is not None for o in outcomes)

    assert await race("create", IfAbsent(CLOCK.monotonic())) == 1
    blob = await store.get("a")
    assert blob is not None
    assert await race("replace", IfMatches(blob.etag)) == 1
    await store.close()


@pytest.mark.server
@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        ({"secret_access_key": "hunter2"}, WrongSecret, "SignatureDoesNotMatch"),
        ({"access_key_id": "AKIDNOBODY"}, UnknownAccessKey, "InvalidAccessKeyId"),
    ],
)
async def test_wrong_keys(seaweedfs, arguments, kind, code):
    store = connect(seaweedfs.endpoint, seaweedfs.new_bucket(), **arguments)
    for request in (store.get("a"), store.put("a", b"", Always()), store.list("a/")):
        with pytest.raises(kind, match="check AWS_") as caught:
            await request
        assert (caught.value.status, caught.value.code) == (403, code)
        for secret in (*arguments.values(), servers.ACCESS_KEY_ID, servers.SECRET_ACCESS_KEY):
            assert secret not in f"{caught.value!r} {vars(caught.value)}"
    await store.close()


@pytest.mark.server
async def test_a_wrong_clock_is_corrected_by_the_stores(seaweedfs):
    store = connect(seaweedfs.endpoint, seaweedfs.new_bucket(), clock=WrongClock())
    assert await store.put("a", b"", IfAbsent(store.time.clock.monotonic())) is not None
    assert await store.get("a") is not None
    assert abs(store.time.now_ms() / 1000 - CLOCK.unix()) < 2
    await store.close()


@pytest.mark.server
async def test_a_server_that_goes_and_comes_back(seaweedfs):
    bucket = seaweedfs.new_bucket()
    store = connect(seaweedfs.endpoint, bucket)
    await store.put("a", b"kept", Always())
    seaweedfs.kill()
    try:
        with pytest.raises(Undecided):  # the kept connection: nobody knows
            await store.get("a")
        with pytest.raises(Undecided, match="Cannot connect") as caught:
            await store.put("a", b"", Always())
        assert caught.value.applied is False
    finally:
        seaweedfs.start()
    blob = await store.get("a")
    assert blob is not None
    assert blob.body == b"kept"
    await store.close()


# --- answers as they are told ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "applied", "retry_after_s"),
    [
        (error(503, "SlowDown", retry_after="7"), None, 7.0),
        (error(503, "SlowDown", retry_after="soon"), None, None),
        (error(429, "TooManyRequests"), False, None),
        (error(500, "InternalError"), None, None),
        (answer(502, b"<html>", etag=""), None, None),
        (answer(200, b"", etag=""), None, None),
    ],
)
async def test_open_outcomes(said, applied, retry_after_s):
    async with Liar(said) as liar:
        store = connect(liar.endpoint)
        with pytest.raises(Undecided) as caught:
            await store.put("a", b"", Always())
        await store.close()
    assert (caught.value.applied, caught.value.retry_after_s, caught.value.key) == (
        applied,
        retry_after_s,
        "a",
    )
    assert not caught.value.reread
    assert len(liar.requests) == 1


@pytest.mark.parametrize(("condition", "reread"), [(IfAbsent(None), False), (IfMatches("0" * 32), True)])
async def test_a_conflict_asks_for_a_read_only_where_there_is_an_etag(condition, reread):
    async with Liar(error(409, "ConditionalRequestConflict")) as liar:
        store = connect(liar.endpoint)
        with pytest.raises(Undecided) as caught:
            await store.put("a", b"", condition)
        await store.close()
    assert (caught.value.reread, caught.value.applied) == (reread, None)


async def test_a_proxys_404_is_no_missing_object():
    async with Liar(answer(404, b"<html>default backend</html>")) as liar:
        store = connect(liar.endpoint)
        for request in (store.get("a"), store.delete("a", read_at=None), store.list("a/")):
            with pytest.raises(Undecided):
                await request
        await store.close()


CUT_OFF = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"


@pytest.mark.parametrize("body", [b"", b"<Error><Code>InternalError</Code></Error>", b"<ListBucket", CUT_OFF])
async def test_success_without_the_document(body):
    async with Liar(answer(200, body)) as liar:
        store = connect(liar.endpoint)
        with pytest.raises(Undecided, match="LIST 'a/'"):
            await store.list("a/")
        with pytest.raises(Undecided, match="DELETE MANY"):
            await store.delete_many(["a"], read_at=None)
        await store.close()


async def test_a_body_that_was_cut_short_is_not_believed():
    whole, cut = answer(200, b"whole"), answer(200, b"who", etag=f'"{md5(b"whole").hexdigest()}"')
    async with Liar(whole, cut, cut, whole) as liar:
        store = connect(liar.endpoint)
        assert (await store.get("a/1")).body == b"whole"
        for _ in range(2):
            with pytest.raises(Undecided, match="not the one that its ETag names"):
                await store.get("a/1")
        assert (await store.get("a/1")).body == b"whole"
        await store.close()


async def test_a_store_whose_etags_are_no_md5_sums_is_known_by_its_first_body():
    other = {"etag": f'"{"0" * 32}"'}
    async with Liar(
        answer(200, b"a", **other), answer(200, b"a", **other), answer(200, b"b", **other)
    ) as liar:
        store = connect(liar.endpoint)
        with pytest.raises(Undecided):
            await store.get("a/1")
        assert [(await store.get("a/1")).body for _ in range(2)] == [b"a", b"b"]
        await store.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"x_amz_server_side_encryption": "aws:kms"},
        {"x_amz_server_side_encryption": "aws:kms:dsse"},
        {"x_amz_server_side_encryption_customer_algorithm": "AES256"},
        {"etag": f'"{"0" * 32}-2"'},
    ],
    ids=str,
)
async def test_an_etag_that_need_not_be_an_md5_sum_is_not_compared(headers):
    async with Liar(answer(200, b"a"), answer(200, b"b", **{"etag": f'"{"0" * 32}"', **headers})) as liar:
        store = connect(liar.endpoint)
        assert [(await store.get("a/1")).body for _ in range(2)] == [b"a", b"b"]
        await store.close()


async def test_a_batch_delete_names_what_failed():
    body = (
        b"<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code></Error>"
        b"<Error><Key>b</Key><Code>NoSuchKey</Code></Error></DeleteResult>"
    )
    async with Liar(answer(200, body)) as liar:
        store = connect(liar.endpoint)
        assert await store.delete_many(["a", "b", "c"], read_at=None) == ["a"]
        await store.close()
    assert "content-md5: " in liar.requests[0].lower()


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (error(403, "AccessDenied"), AccessDenied, "s3:ListBucket"),
        (error(403, "AllAccessDisabled"), AccessDenied, "may not"),
        (answer(403, b""), AccessDenied, "may not"),
        (error(401, "Unauthorized"), UnknownAccessKey, "AWS_ACCESS_KEY_ID"),
        (error(400, "InvalidToken"), AccessDenied, "AWS_SESSION_TOKEN"),
        (error(501, "NotImplemented"), UnfitStore, "conditional writes"),
        (error(400, "EntityTooLarge"), StoreError, "so it is"),
        (answer(404 + 1, b"<html>"), StoreError, "check the endpoint"),
        (answer(301, b"", location="https://h/jobs?x=1"), StoreError, "redirect to https://h/jobs:|redirect"),
        (error(301, "PermanentRedirect", "<Region>eu-west-1</Region>"), WrongRegion, "region='eu-west-1'"),
        (error(307, "TemporaryRedirect", x_amz_bucket_region="eu-west-1"), WrongRegion, "'eu-west-1'"),
        (
            error(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
            WrongRegion,
            "not in 'us-east-1'",
        ),
    ],
)
async def test_refusals_name_cause_and_cure(said, kind, words):
    async with Liar(said) as liar:
        store = connect(liar.endpoint)
        with pytest.raises(kind, match=words) as caught:
            await store.put("a", b"", IfAbsent(None))
        await store.close()
    assert type(caught.value) is kind
    assert caught.value.key == "a"
    assert "'a'" in str(caught.value)
    assert len(liar.requests) == 1


async def test_an_error_has_the_marks_of_its_request():
    async with Liar(
        error(403, "AccessDenied", "<RequestId>in body</RequestId>", x_amz_request_id="R1")
    ) as liar:
        store = connect(liar.endpoint)
        with pytest.raises(AccessDenied, match=r"403 AccessDenied \(request R1\)") as caught:
            await store.get("a")
        await store.close()
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (403, "AccessDenied", "R1")


async def test_aws_does_not_share_a_bucket_with_another_account():
    async with Liar(error(409, "BucketAlreadyExists")) as liar:
        store = connect(liar.endpoint.replace("127.0.0.1", "localhost"), "my.jobs", driver="aws")
        with pytest.raises(AccessDenied, match="another account"):
            await store.create_bucket()
        await store.close()


async def test_a_clock_that_cannot_be_corrected_is_an_error():
    async with Liar(error(403, "RequestTimeTooSkewed")) as liar:
        store = connect(liar.endpoint)
        with pytest.raises(ClockSkewed, match="set the clock"):
            await store.get("a")
        await store.close()
    assert len(liar.requests) == 2


async def test_the_local_clock_is_trusted_until_it_is_refused():
    future = CLOCK.unix() + 7200
    ahead = {"date": formatdate(future, usegmt=True)}
    skewed = error(403, "RequestTimeTooSkewed", **ahead)
    async with Liar(answer(200, b"", **ahead), skewed, answer(200, b"", **ahead)) as liar:
        store = connect(liar.endpoint)
        for _ in range(3):
            assert await store.get("a") is not None
        await store.close()
    offsets = [_unix(date) - CLOCK.unix() for date in headers_of(liar, "x-amz-date")]
    assert [round(offset / 3600) for offset in offsets] == [0, 0, 2, 2]


async def test_a_local_clock_that_is_ahead_does_not_sign_for_the_future():
    """A signature made 14 minutes ahead would be good for 29, beyond what the protocol reckons with."""
    late = {"date": formatdate(CLOCK.unix() - 14 * 60, usegmt=True)}
    async with Liar(answer(200, b"", **late)) as liar:
        store = connect(liar.endpoint)
        for _ in range(3):
            await store.get("a")
        await store.close()
    offsets = [_unix(date) - CLOCK.unix() for date in headers_of(liar, "x-amz-date")]
    assert [round(offset / 60) for offset in offsets] == [0, -14, -14]


async def test_a_proxys_wrong_date_does_not_lock_the_store_out():
    """The store refuses signatures made by a Date that is not its own; the local clock is right then."""
    late = {"date": formatdate(CLOCK.unix() - 3600, usegmt=True)}
    skewed = error(403, "RequestTimeTooSkewed", **late)
    async with Liar(answer(200, b"", **late), skewed, answer(200, b"", **late)) as liar:
        store = connect(liar.endpoint)
        for _ in range(3):
            assert await store.get("a") is not None
        await store.close()
    offsets = [_unix(date) - CLOCK.unix() for date in headers_of(liar, "x-amz-date")]
    assert [round(offset / 60) for offset in offsets] == [0, -60, 0, 0]


def headers_of(liar: Liar, name: str) -> list[str]:
    """Return a header of each request, in the order in which they came."""
    lines = [line for request in liar.requests for line in request.split("\r\n")]
    return [line.partition(": ")[2] for line in lines if line.lower().startswith(f"{name}:")]


def _unix(date: str) -> float:
    return datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


async def test_the_stores_time_is_learned_from_every_answer():
    async with Liar(error(404, "NoSuchKey", date=formatdate(1_000_000_000, usegmt=True))) as liar:
        store = connect(liar.endpoint)
        assert not store.time.synced
        assert await store.get("a") is None
        assert store.time.lower_ms() in range(1_000_000_000_000 - 1, 1_000_000_002_000)
        assert store.time.upper_ms() in range(1_000_000_000_000, 1_000_000_003_000)
        await store.close()


async def test_an_answer_without_a_date_is_no_failure():
    async with Liar(answer(200, b"x", date="")) as liar:
        store = connect(liar.endpoint)
        blob = await store.get("a")
        await store.close()
    assert blob is not None
    assert abs(blob.date_ms / 1000 - CLOCK.unix()) < 5


def role(number: int) -> bytes:
    keys = {"AccessKeyId": f"id-{number}", "SecretAccessKey": "hunter2", "Token": f"token-{number}"}
    keys["Expiration"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return answer(200, json.dumps(keys).encode(), connection="close")


async def test_an_expired_token_is_replaced_once(monkeypatch):
    expired = error(400, "ExpiredToken")
    async with Liar(expired, answer(200), expired) as liar, Liar(role(1), role(2)) as service:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.endpoint}/role")
        settings = Settings.resolve(liar.endpoint, "jobs", env={})
        store = open_s3(settings, StoreClock(CLOCK))
        assert await store.put("a", b"", IfAbsent(CLOCK.monotonic())) is not None
        with pytest.raises(ExpiredCredentials, match="renew"):
            await store.get("a")
        await store.close()
    # The third is the second call's; then the service has no newer token to give.
    assert headers_of(liar, "x-amz-security-token") == ["token-1", "token-2", "token-2"]


async def test_a_given_token_that_has_expired_is_an_error_at_once():
    async with Liar(error(400, "ExpiredToken")) as liar:
        store = connect(liar.endpoint, session_token="sesame")
        with pytest.raises(ExpiredCredentials) as caught:
            await store.get("a")
        await store.close()
    assert len(liar.requests) == 1
    assert "sesame" not in repr(caught.value)


async def test_nothing_is_signed_beyond_the_fence():
    old = CLOCK.monotonic() - FENCE_S - 1
    async with Liar(answer(200)) as liar:
        store = connect(liar.endpoint)
        late = (
            store.put("a", b"", IfAbsent(old)),
            store.delete("a", read_at=old),
            store.delete_many(["a"], read_at=old),
        )
        for request in late:
            with pytest.raises(FenceExpired):
                await request
        assert liar.requests == []
        assert await store.put("a", b"", IfMatches("0" * 32)) is not None
        assert await store.put("a", b"", IfAbsent(None)) is not None
        await store.close()


async def test_the_fence_is_held_on_the_resend_too():
    """A request that is refused for its clock may have become too old when it is sent again."""

    class Sleepy(SystemClock):
        asleep_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.asleep_s

    clock = Sleepy()

    async def suspend(writer: asyncio.StreamWriter) -> None:
        clock.asleep_s = FENCE_S + 1
        writer.write(error(403, "RequestTimeTooSkewed"))
        await writer.drain()

    async with Liar(suspend, answer(200)) as liar:
        store = connect(liar.endpoint, clock=clock)
        with pytest.raises(FenceExpired):
            await store.put("a", b"", IfAbsent(clock.monotonic()))
        await store.close()
    assert len(liar.requests) == 1


def test_a_driver_without_an_endpoint_of_its_own():
    settings = Settings.resolve(None, "jobs", driver="r2", access_key_id="a", secret_access_key="b", env={})
    with pytest.raises(BadEndpoint, match="'r2' needs an endpoint"):
        open_s3(settings, StoreClock(CLOCK))
