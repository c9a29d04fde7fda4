"""The core's hot paths: compiled, plain, and what one would use without it.

Run with `pytest bench/test_core.py --benchmark-enable`; see README.md beside this file.
"""

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace

import plain_core
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from buquet._core import COMPILED

KEYS = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "bucket.s3.us-east-1.amazonaws.com"
TASK_ID = "019c03d8-5880-7000-9523-456789abcdef"
PATH = f"/tasks/4/{TASK_ID}.json"
HEADERS = {"content-type": "application/json", "if-none-match": "*"}
BODY = b"x" * 1024
NOW_MS = 1_769_590_800_123
TIME = "2026-01-28T09:00:00.123Z"
HTTP_DATE = "Wed, 28 Jan 2026 09:00:00 GMT"
INPUT = {
    "to": "user@example.com",
    "vip": True,
    "note": None,
    "address": {"street": "Hohe Straße 12", "city": "Köln"},
    "items": [
        {"sku": f"SKU-{number:05d}", "quantity": number, "price": 9.99, "tags": ["a", "b"]}
        for number in range(12)
    ],
}

Run = Callable[..., object]


def operation(name: str) -> pytest.MarkDecorator:
    """Put a benchmark into a group; a round is a millisecond of calls, as one is too short to time."""
    return pytest.mark.benchmark(group=name, min_time=0.001, max_time=0.5)


@pytest.fixture(params=["compiled", "plain"])
def core(request: pytest.FixtureRequest) -> SimpleNamespace:
    if request.param == "plain":
        return plain_core.load(plain_core.PACKAGE)
    if not COMPILED:
        pytest.skip("this installation has no compiled core")
    return plain_core.load("buquet._core")


# --- a signed PUT of 1 KiB, the hash of its payload included -------------------------------


@operation("sign a PUT of 1 KiB")
def test_sign(core: SimpleNamespace, benchmark: Run) -> None:
    signer = core.sign.Signer(*KEYS, "us-east-1")

    def sign() -> dict[str, str]:
        digest = core.sign.payload_hash(BODY)
        return signer.sign("PUT", HOST, PATH, (), HEADERS, digest, NOW_MS / 1000)

    assert "authorization" in benchmark(sign)


@operation("sign a PUT of 1 KiB")
def test_sign_reference(benchmark: Run) -> None:
    signer = S3SigV4Auth(Credentials(*KEYS), "s3", "us-east-1")

    def sign() -> AWSRequest:
        request = AWSRequest("PUT", f"https://{HOST}{PATH}", HEADERS, BODY)
        signer.add_auth(request)
        return request

    assert "authorization" in benchmark(sign).headers


@operation("the query of a LIST")
def test_canonical_query(core: SimpleNamespace, benchmark: Run) -> None:
    pairs = [("list-type", "2"), ("prefix", "ready/"), ("max-keys", "1000"), ("encoding-type", "url")]
    assert benchmark(core.sign.canonical_query, pairs)


# --- ids and shards ------------------------------------------------------------------------


@operation("mint an id")
def test_mint(core: SimpleNamespace, benchmark: Run) -> None:
    assert benchmark(core.ident.mint, NOW_MS, 5, 0x123456789ABCDEF)


@operation("mint an id")
def test_mint_reference(benchmark: Run) -> None:
    value = NOW_MS << 80 | 7 << 76 | 2 << 62 | 0x123456789ABCDEF
    assert benchmark(lambda: str(uuid.UUID(int=value)))


@operation("parse an id")
def test_parse_id(core: SimpleNamespace, benchmark: Run) -> None:
    assert benchmark(core.ident.parse, TASK_ID)


@operation("parse an id")
def test_parse_id_reference(benchmark: Run) -> None:
    assert benchmark(lambda: uuid.UUID(TASK_ID).bytes)


@operation("shard of an id")
def test_shard(core: SimpleNamespace, benchmark: Run) -> None:
    assert benchmark(core.shard.shard_of, TASK_ID, 1)


@operation("shard of an id")
def test_shard_reference(benchmark: Run) -> None:
    xxhash = pytest.importorskip("xxhash")
    assert benchmark(lambda: xxhash.xxh64_hexdigest(uuid.UUID(TASK_ID).bytes)[:1])


# --- times ---------------------------------------------------------------------------------


@operation("format RFC 3339")
def test_format(core: SimpleNamespace, benchmark: Run) -> None:
    assert benchmark(core.rfc3339.format_ms, NOW_MS) == TIME


@operation("format RFC 3339")
def test_format_reference(benchmark: Run) -> None:
    def write() -> str:
        return datetime.fromtimestamp(NOW_MS / 1000, UTC).isoformat(timespec="milliseconds")

    assert benchmark(write)


@operation("parse RFC 3339")
def test_parse(core: SimpleNamespace, benchmark: Run) -> None:
    assert benchmark(core.rfc3339.parse_ms, TIME) == NOW_MS


@operation("parse RFC 3339")
def test_parse_reference(benchmark: Run) -> None:
    assert benchmark(lambda: datetime.fromisoformat(TIME).timestamp() * 1000)


@operation("parse an HTTP date")
def test_http_date(core: SimpleNamespace, benchmark: Run) -> None:
    assert benchmark(core.rfc3339.parse_http_date, HTTP_DATE)


@operation("parse an HTTP date")
def test_http_date_reference(benchmark: Run) -> None:
    assert benchmark(lambda: parsedate_to_datetime(HTTP_DATE).timestamp() * 1000)


# --- a user's value ------------------------------------------------------------------------


@operation("check a value of 1 KiB")
def test_plain(core: SimpleNamespace, benchmark: Run) -> None:
    assert benchmark(core.value.plain, INPUT) == INPUT


@operation("check a value of 1 KiB")
def test_plain_reference(benchmark: Run) -> None:
    """The json module checks less, and has to write the text to find out."""
    assert benchmark(lambda: json.dumps(INPUT, allow_nan=False))


# --- a record: decode, claim, encode -------------------------------------------------------


def _claim_arguments() -> dict[str, object]:
    return {
        "at_ms": NOW_MS,
        "lease_id": "l" * 32,
        "nonce": "n" * 32,
        "worker_id": "w",
        "incarnation": "m" * 33,
    }


def _pending_body(core: SimpleNamespace) -> bytes:
    record = core.record.Record(
        rev=0,
        nonce="0" * 32,
        id=TASK_ID,
        task_type="send_email",
        status="pending",
        priority=5,
        created_at=TIME,
        available_at=TIME,
        updated_at=TIME,
        timeout_seconds=300,
        max_retries=3,
        first_due=TIME,
        log=[core.record.LogEntry(TIME, "pending", available_at=TIME)],
        input=core.record.msgspec.Raw(json.dumps(INPUT).encode()),
    )
    return bytes(core.record.encode(record))


@operation("decode, claim and encode a record with 1 KiB of input")
def test_record(core: SimpleNamespace, benchmark: Run) -> None:
    body, arguments = _pending_body(core), _claim_arguments()

    def step() -> bytes:
        return bytes(core.record.encode(core.record.claim(core.record.decode(body), **arguments)))

    assert b'"running"' in benchmark(step)


@operation("decode, claim and encode a record with 1 KiB of input")
def test_record_reference(benchmark: Run) -> None:
    """The same by the json module: the input is parsed and written again, and nothing is checked."""
    body = _pending_body(plain_core.load(plain_core.PACKAGE))

    def step() -> bytes:
        record = json.loads(body)
        record |= {"status": "running", "attempt": 1, "lease_id": "l" * 32, "nonce": "n" * 32, "rev": 1}
        record["log"].append({"at": TIME, "status": "running", "attempt": 1, "lease_id": "l" * 32})
        return json.dumps(record).encode()

    assert b'"running"' in benchmark(step)
