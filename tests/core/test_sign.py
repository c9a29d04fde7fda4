"""Signatures, against AWS's published examples and botocore's signer."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.utils import percent_encode

ACCESS_KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HOST = "examplebucket.s3.amazonaws.com"
MAY_24_2013 = 1_369_353_600

# "Examples: Signature Calculations" of
# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
PUBLISHED = {
    "GET Object": (
        ("GET", "/test.txt", [], {"range": "bytes=0-9"}, b""),
        "host;range;x-amz-content-sha256;x-amz-date",
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    "PUT Object": (
        (
            "PUT",
            "/test%24file.text",
            [],
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.",
        ),
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    "GET Bucket Lifecycle": (
        ("GET", "/", [("lifecycle", "")], {}, b""),
        "host;x-amz-content-sha256;x-amz-date",
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ),
    "GET Bucket (List Objects)": (
        ("GET", "/", [("max-keys", "2"), ("prefix", "J")], {}, b""),
        "host;x-amz-content-sha256;x-amz-date",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_examples(core: SimpleNamespace, name: str) -> None:
    (method, path, query, headers, body), names, signature = PUBLISHED[name]
    digest = core.sign.payload_hash(body)
    signer = core.sign.Signer(ACCESS_KEY_ID, SECRET, "us-east-1")
    assert signer.sign(method, HOST, path, query, headers, digest, MAY_24_2013) == {
        "x-amz-date": "20130524T000000Z",
        "x-amz-content-sha256": digest,
        "authorization": "AWS4-HMAC-SHA256 "
        "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders={names}, Signature={signature}",
    }


def test_the_key_follows_the_day_and_back(core: SimpleNamespace) -> None:
    """Also backwards: the clock may be corrected across midnight."""
    signer = core.sign.Signer(ACCESS_KEY_ID, SECRET, "us-east-1")
    (method, path, query, headers, _), _, signature = PUBLISHED["GET Object"]
    digest = core.sign.payload_hash(b"")

    def sign(unix_s: float) -> str:
        return signer.sign(method, HOST, path, query, headers, digest, unix_s)["authorization"]

    first = sign(MAY_24_2013)
    assert first.endswith(signature)
    assert "/20130523/" in sign(MAY_24_2013 - 0.5)
    assert sign(MAY_24_2013 + 0.999) == first
    assert sign(MAY_24_2013 + 86_399) != first
    assert "/20130525/" in sign(MAY_24_2013 + 86_400)
    assert sign(MAY_24_2013) == first


# --- against botocore ----------------------------------------------------------------------

TEXT = "abzAZ09-._~ /+=&%?#$@:,;!'()*[]{}|\\^`<>\"\téßЖ漢🙂"
HEADERS = ("if-match", "if-none-match", "content-type", "content-md5", "x-amz-acl")


@dataclass(frozen=True)
class Request:
    method: str
    host: str
    key: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes
    region: str
    secret: str
    token: str | None
    unix_s: int


def arbitrary_request(seed: int) -> Request:
    rng = random.Random(seed)

    def text(longest: int) -> str:
        return "".join(rng.choices(TEXT, k=rng.randint(1, longest)))

    return Request(
        method=rng.choice(["GET", "PUT", "HEAD", "POST", "DELETE"]),
        host=rng.choice(["bucket.s3.eu-central-1.amazonaws.com", "127.0.0.1:8333", "[::1]:9000", "host"]),
        key=rng.choice([text(40), f"a//{text(9)}//", "tasks/0/019c03d8-5880-7000-9400-000000000000.json"]),
        query=[(rng.choice("Aab") + text(2), rng.choice(["", text(9)])) for _ in range(rng.randint(0, 4))],
        headers={name: rng.choice(["*", " e ", "  two  spaces "]) for name in rng.sample(HEADERS, 2)},
        body=rng.randbytes(rng.choice([0, 1, 1024])),
        region=rng.choice(["us-east-1", "auto", "eu-central-1"]),
        secret=text(60),
        token=rng.choice([None, "FwoGZXIvYXdzE//token==" + "x" * rng.randint(0, 300)]),
        unix_s=rng.randint(0, 4_000_000_000),
    )


def signed_by_botocore(request: Request, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    now = datetime.fromtimestamp(request.unix_s, UTC)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: now)
    url = f"http://{request.host}/{percent_encode(request.key, safe='/~')}"
    signed = AWSRequest(request.method, url, request.headers, request.body, params=request.query)
    credentials = Credentials(ACCESS_KEY_ID, request.secret, request.token)
    auth.S3SigV4Auth(credentials, "s3", request.region).add_auth(signed)
    return {name.lower(): value for name, value in signed.headers.items()}


def signed_by_us(request: Request, sign: ModuleType) -> dict[str, str]:
    signer = sign.Signer(ACCESS_KEY_ID, request.secret, request.region, request.token)
    path = "/" + sign.encode_path(request.key)
    digest = sign.payload_hash(request.body)
    made = signer.sign(
        request.method, request.host, path, request.query, request.headers, digest, request.unix_s
    )
    return request.headers | made


@pytest.mark.parametrize("group", range(10))
def test_agrees_with_botocore(core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    for seed in range(group * 50, group * 50 + 50):
        request = arbitrary_request(seed)
        assert signed_by_us(request, core.sign) == signed_by_botocore(request, monkeypatch), request


def test_an_unsigned_payload(core: SimpleNamespace) -> None:
    signer = core.sign.Signer(ACCESS_KEY_ID, SECRET, "us-east-1")
    made = signer.sign("PUT", HOST, "/k", (), {}, core.sign.UNSIGNED, MAY_24_2013)
    assert made["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    signed = signer.sign("PUT", HOST, "/k", (), {}, core.sign.payload_hash(b""), MAY_24_2013)
    assert made["authorization"] != signed["authorization"]


# --- the parts -----------------------------------------------------------------------------


def test_encode_path(core: SimpleNamespace) -> None:
    assert core.sign.encode_path("AZaz09-._~/") == "AZaz09-._~/"
    assert core.sign.encode_path("a b+c=d%2F//é") == "a%20b%2Bc%3Dd%252F//%C3%A9"


def test_canonical_query(core: SimpleNamespace) -> None:
    query = core.sign.canonical_query
    assert query([]) == ""
    assert query([("delete", "")]) == "delete="
    assert query([("prefix", "a/b c+d~"), ("list-type", "2")]) == "list-type=2&prefix=a%2Fb%20c%2Bd~"
    # Sorted as they are sent, not as they were: "%" sorts before "a", as "é" would not.
    assert query([("a", "2"), ("é", ""), ("a", "10")]) == "%C3%A9=&a=10&a=2"


@pytest.mark.parametrize("part", ["encode_path", "canonical_query"])
def test_lone_surrogates_are_refused(core: SimpleNamespace, part: str) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        getattr(core.sign, part)("\ud800" if part == "encode_path" else [("a", "\ud800")])


def test_no_representation_shows_the_secret(core: SimpleNamespace) -> None:
    signer = core.sign.Signer(ACCESS_KEY_ID, "s3cr3t", "us-east-1", "t0k3n")
    for text in (repr(signer), str(signer), f"{signer}", repr([signer])):
        assert ACCESS_KEY_ID in text
        assert "s3cr3t" not in text
        assert "t0k3n" not in text


def test_threads_share_a_signer(core: SimpleNamespace) -> None:
    """One thread changes the day under the others; every signature must still be right."""
    signer = core.sign.Signer(ACCESS_KEY_ID, SECRET, "us-east-1")

    def sign(signer: object, day: int) -> str:
        arguments = ("GET", HOST, "/k", (), {}, core.sign.UNSIGNED, MAY_24_2013 + day * 86_400)
        return signer.sign(*arguments)["authorization"]

    expected = {day: sign(core.sign.Signer(ACCESS_KEY_ID, SECRET, "us-east-1"), day) for day in range(3)}
    days = [0, 1, 2] * 300
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda day: sign(signer, day), days)) == [expected[day] for day in days]
