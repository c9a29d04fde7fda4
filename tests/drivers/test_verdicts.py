"""The matrix of answers: what each dialect takes them for, each row with its source.

A source is the vendor's or the standard's page; or `measured`, with the servers that
`make matrix` asks (docs/stores.md); or `decided`, with the reason, where no page says it.
"""

from __future__ import annotations

import re

import pytest

from buquet.store import registry
from buquet.store.driver import Operation, Verdict
from buquet.store.interface import Always, IfAbsent, IfMatches

Op, V = Operation, Verdict

AWS = "https://docs.aws.amazon.com/AmazonS3/latest"
AWS_ERRORS = f"{AWS}/API/ErrorResponses.html"
AWS_WRITES = f"{AWS}/userguide/conditional-writes.html"
AWS_CREATE = f"{AWS}/API/API_CreateBucket.html#API_CreateBucket_Errors"
AWS_DELETE = f"{AWS}/API/API_DeleteObject.html"
R2_ERRORS = "https://developers.cloudflare.com/r2/api/error-codes/"
R2_LIMITS = "https://developers.cloudflare.com/r2/platform/limits/"
MINIO = "https://github.com/minio/minio"
COREWEAVE = "https://docs.coreweave.com/release-notes/ai-object-storage-conditional-writes"
B2 = "https://github.com/lance-format/lance/issues/5614"
OSS = "https://github.com/tobi/walgit/issues/67"
RFC_9110 = "https://www.rfc-editor.org/rfc/rfc9110"
RFC_6585 = "https://www.rfc-editor.org/rfc/rfc6585#section-4"
EVERY = ("s3", "aws", "minio", "r2", "localstack", "seaweedfs", "ceph", "ministack")
UNLESS_AWS = tuple(name for name in EVERY if name != "aws")
CONDITIONAL = [Op.CREATE, Op.REPLACE]

# drivers, operations, status, code, verdict, source
ROWS = [
    (EVERY, list(Op), 200, "", V.DONE, AWS_ERRORS),
    (EVERY, [Op.DELETE], 204, "", V.DONE, AWS_DELETE),
    # a condition that is not met
    (EVERY, CONDITIONAL, 412, "PreconditionFailed", V.NOT_MET, AWS_WRITES),
    (EVERY, CONDITIONAL, 412, "", V.NOT_MET, f"{RFC_9110}#section-15.5.13"),
    (["r2"], CONDITIONAL, 412, "PreconditionFailed", V.NOT_MET, f"{R2_ERRORS} (10031)"),
    (["seaweedfs", "localstack", "ministack", "ceph"], CONDITIONAL, 412, "PreconditionFailed", V.NOT_MET,
     "measured: an existing key, an older ETag, the losers of a race"),
    (EVERY, [Op.REPLACE], 404, "NoSuchKey", V.NOT_MET, AWS_WRITES),
    (["localstack", "ministack"], [Op.REPLACE], 404, "NoSuchKey", V.NOT_MET, "measured: a missing key"),
    (["seaweedfs", "ceph"], [Op.REPLACE], 412, "PreconditionFailed", V.NOT_MET, "measured: a missing key"),
    (EVERY, CONDITIONAL, 304, "", V.NOT_MET, f"{MINIO}/issues/19442"),
    (EVERY, [Op.PUT, Op.GET, Op.DELETE], 412, "PreconditionFailed", V.REFUSED, "decided: none was sent"),
    (EVERY, [Op.GET, Op.PUT], 304, "", V.REFUSED, "decided: no condition was sent"),
    # races
    (EVERY, CONDITIONAL, 409, "ConditionalRequestConflict", V.CONFLICT, AWS_WRITES),
    (["s3"], [Op.CREATE], 409, "ConditionalRequestConflict", V.CONFLICT, COREWEAVE),
    (EVERY, [Op.PUT, Op.DELETE], 409, "OperationAborted", V.CONFLICT, AWS_ERRORS),
    (["ceph"], CONDITIONAL, 500, "UnknownError", V.UNDECIDED, "measured: losers of a race"),
    (["minio"], CONDITIONAL, 503, "RequestTimeout", V.UNDECIDED,
     f"{MINIO}/blob/master/cmd/api-errors.go (a lock that was not to be had)"),
    # missing things
    (EVERY, [Op.GET], 404, "NoSuchKey", V.ABSENT, AWS_ERRORS),
    (["r2"], [Op.GET], 404, "NoSuchKey", V.ABSENT, f"{R2_ERRORS} (10007)"),
    (EVERY, [Op.HEAD], 404, "", V.ABSENT, f"{AWS}/API/API_HeadObject.html"),
    (EVERY, [Op.DELETE], 404, "NoSuchKey", V.DONE, "decided: it is as was asked for"),
    (EVERY, [Op.LIST, Op.CREATE, Op.PUT], 404, "NoSuchKey", V.REFUSED, "decided: none of them reads one"),
    (EVERY, [o for o in Op if o is not Op.HEAD], 404, "NoSuchBucket", V.REFUSED, AWS_ERRORS),
    (EVERY, [Op.GET, Op.REPLACE, Op.DELETE, Op.LIST], 404, "", V.UNDECIDED,
     "decided: it may be a proxy's, whose store is away for a moment"),
    # later
    (EVERY, list(Op), 503, "SlowDown", V.BUSY, AWS_ERRORS),
    (EVERY, list(Op), 503, "ServiceUnavailable", V.BUSY, AWS_ERRORS),
    (EVERY, list(Op), 503, "", V.BUSY, f"{RFC_9110}#section-15.6.4"),
    (EVERY, list(Op), 500, "SlowDown", V.BUSY, "decided: the code says more than the status"),
    (EVERY, list(Op), 429, "", V.BUSY, RFC_6585),
    (["r2"], CONDITIONAL, 429, "TooManyRequests", V.BUSY, f"{R2_ERRORS} (10058), {R2_LIMITS}"),
    (["r2"], list(Op), 503, "ServiceUnavailable", V.BUSY, f"{R2_ERRORS} (10043)"),
    (["minio"], list(Op), 503, "SlowDownWrite", V.BUSY, f"{MINIO}/blob/master/cmd/api-errors.go"),
    # open
    (EVERY, list(Op), 500, "InternalError", V.UNDECIDED, AWS_ERRORS),
    (["r2"], list(Op), 500, "InternalError", V.UNDECIDED, f"{R2_ERRORS} (10001)"),
    (EVERY, list(Op), 502, "", V.UNDECIDED, f"{RFC_9110}#section-15.6.3"),
    (EVERY, list(Op), 504, "", V.UNDECIDED, f"{RFC_9110}#section-15.6.5"),
    (EVERY, list(Op), 408, "", V.UNDECIDED, f"{RFC_9110}#section-15.5.9"),
    (EVERY, [Op.PUT, Op.CREATE], 400, "RequestTimeout", V.UNDECIDED, AWS_ERRORS),
    (EVERY, [Op.PUT, Op.CREATE], 400, "IncompleteBody", V.UNDECIDED, AWS_ERRORS),
    (["r2"], [Op.PUT, Op.CREATE], 400, "IncompleteBody", V.UNDECIDED, f"{R2_ERRORS} (10013)"),
    (["r2"], CONDITIONAL, 400, "ClientDisconnect", V.UNDECIDED, f"{R2_ERRORS} (10054)"),
    # mended once
    (EVERY, list(Op), 403, "RequestTimeTooSkewed", V.SKEWED, AWS_ERRORS),
    (["seaweedfs", "ceph"], list(Op), 403, "RequestTimeTooSkewed", V.SKEWED, "measured: a clock 1 h off"),
    (EVERY, list(Op), 400, "ExpiredToken", V.EXPIRED, AWS_ERRORS),
    (EVERY, list(Op), 400, "TokenRefreshRequired", V.EXPIRED, AWS_ERRORS),
    (EVERY, list(Op), 403, "ExpiredToken", V.EXPIRED, "decided: the code says more than the status"),
    (["r2"], list(Op), 400, "ExpiredRequest", V.SKEWED, f"{R2_ERRORS} (10018)"),
    # refused
    (EVERY, list(Op), 403, "SignatureDoesNotMatch", V.REFUSED, AWS_ERRORS),
    (EVERY, list(Op), 403, "InvalidAccessKeyId", V.REFUSED, AWS_ERRORS),
    (EVERY, list(Op), 403, "AccessDenied", V.REFUSED, AWS_ERRORS),
    (["r2"], list(Op), 401, "Unauthorized", V.REFUSED, f"{R2_ERRORS} (10002)"),
    (["r2"], list(Op), 403, "NotEntitled", V.REFUSED, f"{R2_ERRORS} (10042)"),
    (["r2"], [Op.PUT, Op.REPLACE, Op.DELETE], 403, "ObjectLockedByBucketPolicy", V.REFUSED,
     f"{R2_ERRORS} (10069)"),
    (EVERY, CONDITIONAL, 501, "NotImplemented", V.REFUSED, AWS_ERRORS),
    (["s3"], CONDITIONAL, 501, "NotImplemented", V.REFUSED, f"{B2}, {OSS}"),
    (["localstack"], [Op.DELETE], 501, "NotImplemented", V.REFUSED, "measured: If-Match, never sent"),
    (EVERY, list(Op), 301, "PermanentRedirect", V.REFUSED, AWS_ERRORS),
    (EVERY, list(Op), 307, "TemporaryRedirect", V.REFUSED, AWS_ERRORS),
    (EVERY, list(Op), 400, "AuthorizationHeaderMalformed", V.REFUSED, AWS_ERRORS),
    # a bucket that is there
    (EVERY, [Op.CREATE_BUCKET], 409, "BucketAlreadyOwnedByYou", V.DONE, AWS_CREATE),
    (UNLESS_AWS, [Op.CREATE_BUCKET], 409, "BucketAlreadyExists", V.DONE, "measured: rclone, one's own"),
    (["aws"], [Op.CREATE_BUCKET], 409, "BucketAlreadyExists", V.REFUSED, AWS_CREATE),
    (["r2"], [Op.CREATE_BUCKET], 409, "BucketConflict", V.DONE, f"{R2_ERRORS} (10073)"),
    (EVERY, [Op.CREATE_BUCKET], 409, "", V.REFUSED, "decided: it does not say whose it is"),
]  # fmt: skip


@pytest.mark.parametrize("source", sorted({row[-1] for row in ROWS}))
def test_every_source_is_one(source):
    assert re.match(r"https://[\w.-]+/\S+|measured: \S|decided: \S", source)


@pytest.mark.parametrize(("drivers", "operations", "status", "code", "verdict", "source"), ROWS)
def test_verdict(drivers, operations, status, code, verdict, source):
    for name in drivers:
        for operation in operations:
            found = registry.load(name).verdict(operation, status, code)
            assert found is verdict, f"{name}: {operation} {status} {code}; {source}"


@pytest.mark.parametrize("name", EVERY)
def test_no_failure_is_ever_taken_for_success(name):
    """Whatever the code, only 2xx, a missing key to delete and an own bucket are done."""
    driver = registry.load(name)
    for operation in Op:
        for status in range(300, 600):
            for code in ("", "InternalError", "AccessDenied"):
                assert driver.verdict(operation, status, code) is not V.DONE


@pytest.mark.parametrize("name", EVERY)
def test_conditions(name):
    driver = registry.load(name)
    etag = "0f" * 16
    sent = etag if name == "ceph" else f'"{etag}"'
    assert driver.condition_headers(Always()) == {}
    assert driver.condition_headers(IfAbsent(0.0)) == {"if-none-match": "*"}
    assert driver.condition_headers(IfMatches(etag)) == {"if-match": sent}
    assert driver.condition_headers(IfMatches(f'"{etag}"')) == {"if-match": sent}


def test_what_sets_the_dialects_apart():
    drivers = {name: registry.load(name) for name in EVERY}
    unlike = {name for name in EVERY if not drivers[name].checks_signatures}
    assert unlike == {"localstack", "ministack"}
    assert {name for name in EVERY if not drivers[name].path_style} == {"aws"}
    assert drivers["aws"].default_endpoint == "https://s3.{region}.amazonaws.com"
    assert drivers["r2"].default_region == "auto"
    # https://developers.cloudflare.com/r2/platform/limits/: one write a second to one key
    assert {name: drivers[name].write_interval_s for name in EVERY if drivers[name].write_interval_s} == {
        "r2": 1.0
    }
    assert all(driver.capabilities.conditional_writes for driver in drivers.values())
