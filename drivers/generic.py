"""The generic dialect: what AWS documents, with the deviations that do no harm to allow for.

The other drivers derive from it and differ by data, or by a verdict of their own with its
source beside it. Which answers mean "lost" and which mean "open" is decided here::

    DRIVER.verdict(Operation.REPLACE, 412, "PreconditionFailed")    # Verdict.NOT_MET
    DRIVER.verdict(Operation.REPLACE, 409, "ConditionalRequestConflict")    # Verdict.CONFLICT
"""

from __future__ import annotations

from dataclasses import dataclass

from buquet.store.driver import Driver, Operation, Verdict

_CONDITIONAL = frozenset({Operation.CREATE, Operation.REPLACE})

_MISSING = {
    Operation.GET: Verdict.ABSENT,
    Operation.REPLACE: Verdict.NOT_MET,
    Operation.DELETE: Verdict.DONE,
}
"""What 404 NoSuchKey says to each request that names a key; to the others it is an error."""

_BY_CODE = {
    "NoSuchBucket": Verdict.REFUSED,
    "RequestTimeTooSkewed": Verdict.SKEWED,
    "ExpiredToken": Verdict.EXPIRED,
    "TokenRefreshRequired": Verdict.EXPIRED,
    # Both are 400, and both mean that the body did not arrive.
    "RequestTimeout": Verdict.UNDECIDED,
    "IncompleteBody": Verdict.UNDECIDED,
    # Some services send this one with 400 or 500.
    "SlowDown": Verdict.BUSY,
}
"""Codes that mean the same with any status but success.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

_BY_STATUS = {
    408: Verdict.UNDECIDED,
    409: Verdict.CONFLICT,
    429: Verdict.BUSY,
    501: Verdict.REFUSED,
    503: Verdict.BUSY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericDriver(Driver):
    """S3 as AWS documents it, at an address with the bucket in the path."""

    def verdict(self, operation: Operation, status: int, code: str) -> Verdict:
        """Say what an answer means; see `Driver.verdict`."""
        if 200 <= status < 300:
            return Verdict.DONE
        if code in _BY_CODE:
            return _BY_CODE[code]
        if operation in _CONDITIONAL and status in (304, 412):
            # 412 is the rule (RFC 9110 section 13.2.2); MinIO answered a PUT with 304 for
            # years: https://github.com/minio/minio/issues/19442
            return Verdict.NOT_MET
        if status == 404:
            return _missing(operation, code)
        if operation is Operation.CREATE_BUCKET and status == 409:
            return _taken(code)
        if status in _BY_STATUS:
            return _BY_STATUS[status]
        return Verdict.UNDECIDED if status >= 500 else Verdict.REFUSED


def _missing(operation: Operation, code: str) -> Verdict:
    if operation is Operation.HEAD:
        # An answer to HEAD has no body, and so no code.
        return Verdict.ABSENT
    if code == "NoSuchKey":
        return _MISSING.get(operation, Verdict.REFUSED)
    # A 404 that does not name the key may come from a proxy whose store is away for a
    # moment. Read as "no such object", it would let a task's last marker be deleted.
    return Verdict.REFUSED if code else Verdict.UNDECIDED


def _taken(code: str) -> Verdict:
    if code in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
        return Verdict.DONE
    return Verdict.REFUSED


DRIVER = GenericDriver(name="s3")
