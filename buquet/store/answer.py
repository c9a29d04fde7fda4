"""An answer of S3 and the error that it amounts to: the cause, the cure, and the request's marks.

Example::

    if answer.verdict is Verdict.REFUSED:
        raise failure(answer, endpoint, region)

The text never quotes what the store says about signatures and keys: some stores repeat them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from buquet.errors import (
    AccessDenied,
    BucketMissing,
    ClockSkewed,
    ExpiredCredentials,
    StoreError,
    UnfitStore,
    UnknownAccessKey,
    WrongRegion,
    WrongSecret,
)
from buquet.store.driver import Operation, Verdict
from buquet.store.interface import Undecided

if TYPE_CHECKING:
    from buquet.s3.endpoint import Endpoint
    from buquet.s3.exchange import Response
    from buquet.s3.xml import Error

_CLOCK = (
    ClockSkewed,
    (
        "the local clock is too far from the store's, and signing with the store's own time did not help:"
        " set the clock"
    ),
)
_EXPIRED = (ExpiredCredentials, "the session token has expired and there is no newer one: renew it")
_DENIED = (
    AccessDenied,
    (
        "the credentials may not do this: they need s3:GetObject, s3:PutObject, s3:DeleteObject and"
        " s3:ListBucket (without the last a missing key, too, is answered like this)"
    ),
)
_UNKNOWN = (
    UnknownAccessKey,
    (
        "the store does not know the access key id: check AWS_ACCESS_KEY_ID, and for temporary keys"
        " AWS_SESSION_TOKEN"
    ),
)
_UNFIT = (
    UnfitStore,
    (
        "the store does not implement conditional writes, and without them a queue would lose tasks:"
        " use a store that has them"
    ),
)
_TAKEN = (AccessDenied, "the bucket's name is taken by another account: choose another name")

_BY_CODE: dict[str, tuple[type[StoreError], str]] = {
    "SignatureDoesNotMatch": (
        WrongSecret,
        "the secret access key is not the one that belongs to the access key id: check AWS_SECRET_ACCESS_KEY",
    ),
    "InvalidAccessKeyId": _UNKNOWN,
    "Unauthorized": _UNKNOWN,
    "InvalidToken": (AccessDenied, "the session token does not belong to the keys: check AWS_SESSION_TOKEN"),
    "BucketAlreadyExists": _TAKEN,
}

OPEN = frozenset({Verdict.UNDECIDED, Verdict.CONFLICT, Verdict.BUSY})
"""Verdicts that say nothing about what happened."""

_MESSAGE_LIMIT = 200


@dataclass(slots=True)
class Answer:
    """One answer, what it says, and what it answers to. `date_ms` is its `Date`, Unix ms."""

    operation: Operation
    key: str | None
    response: Response
    error: Error
    verdict: Verdict
    date_ms: int

    @property
    def request_id(self) -> str | None:
        """The store's own name for the request."""
        return self.response.headers.get("x-amz-request-id") or self.error.request_id or None

    def __str__(self) -> str:
        said = " ".join(filter(None, [str(self.response.status), self.error.code]))
        mark = f" (request {self.request_id})" if self.request_id else ""
        return f"{subject(self.operation, self.key)} was answered {said}{mark}"


def subject(operation: Operation, key: str | None) -> str:
    """Name a request in a message."""
    name = operation.name.replace("_", " ")
    return f"{name} {key!r}" if key else name


def failure(answer: Answer, endpoint: Endpoint, region: str) -> Undecided | StoreError:
    """Return the error for an answer that did not settle its request.

    Parameters
    ----------
    answer:
        The answer.
    endpoint, region:
        Where the request went, and the region that it was signed for.
    """
    if answer.verdict in OPEN:
        return undecided(answer, "what it did is open")
    kind, cause = _cause(answer, endpoint, region)
    return kind(
        f"{answer}: {cause}",
        key=answer.key,
        status=answer.response.status,
        code=answer.error.code or None,
        request_id=answer.request_id,
    )


def undecided(answer: Answer, why: str) -> Undecided:
    """Return `Undecided` for an answer that does not tell what happened."""
    return Undecided(
        f"{answer}: {why}",
        # A 503 may come from a proxy, behind which the store went on with the request.
        applied=False if answer.response.status == 429 else None,
        retry_after_s=_retry_after_s(answer.response),
        reread=answer.verdict is Verdict.CONFLICT and answer.operation is Operation.REPLACE,
        key=answer.key,
    )


def _cause(answer: Answer, endpoint: Endpoint, region: str) -> tuple[type[StoreError], str]:
    code, status = answer.error.code, answer.response.status
    if answer.verdict is Verdict.SKEWED:
        return _CLOCK
    if answer.verdict is Verdict.EXPIRED:
        return _EXPIRED
    if code == "NoSuchBucket":
        return BucketMissing, (
            f"the bucket {endpoint.bucket!r} does not exist at {endpoint}: check its name and the endpoint,"
            " or create it with connect(create_bucket=True)"
        )
    elsewhere = answer.error.region or answer.response.headers.get("x-amz-bucket-region", "")
    if elsewhere and elsewhere != region and (status in (301, 307, 400)):
        return WrongRegion, (
            f"the bucket {endpoint.bucket!r} is in the region {elsewhere!r}, not in {region!r}: pass"
            f" region={elsewhere!r} or set S3_REGION, and let the endpoint be that region's"
        )
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status == 501 or code == "NotImplemented":
        return _UNFIT if answer.operation in (Operation.CREATE, Operation.REPLACE) else _other(answer)
    return _DENIED if status in (401, 403) else _other(answer)


def _other(answer: Answer) -> tuple[type[StoreError], str]:
    location = answer.response.headers.get("location")
    if location:
        return (
            StoreError,
            f"a redirect to {location.partition('?')[0]}: set the endpoint to where the store is",
        )
    said = answer.error.message[:_MESSAGE_LIMIT] or "the answer is not S3's: check the endpoint"
    return StoreError, said


def _retry_after_s(response: Response) -> float | None:
    """Read `Retry-After` where it is a number of seconds (RFC 9110 section 10.2.3)."""
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() else None
