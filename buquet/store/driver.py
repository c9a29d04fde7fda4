"""The driver interface: where one vendor's S3 differs from another's. No I/O.

A driver says how a bucket is addressed, how a condition is put into headers, and what an
answer means. It is frozen data with a few methods; the generic dialect, from which the others
derive, is `buquet.drivers.generic`. Drivers are found by name through the entry-point group
`buquet.drivers` (`registry.load`), so a third party can add one without touching this
package (docs/drivers.md)::

    [project.entry-points."buquet.drivers"]
    acme = "acme_s3:DRIVER"
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from buquet.store.interface import Always, Capabilities, Condition, IfAbsent


class Operation(enum.Enum):
    """A request, as verdicts tell them apart."""

    GET = "get"
    HEAD = "head"
    CREATE = "create"
    """A PUT with `If-None-Match: *`."""
    REPLACE = "replace"
    """A PUT with `If-Match`."""
    PUT = "put"
    """A PUT without a condition."""
    DELETE = "delete"
    DELETE_MANY = "delete_many"
    LIST = "list"
    CREATE_BUCKET = "create_bucket"


class Verdict(enum.Enum):
    """What an answer says about the request."""

    DONE = "done"
    """It took effect."""
    ABSENT = "absent"
    """There is no such object."""
    NOT_MET = "not_met"
    """The condition failed: lost, re-read."""
    UNDECIDED = "undecided"
    """It may or may not have taken effect: send it again."""
    CONFLICT = "conflict"
    """Undecided, and an `If-Match` must re-read before it is sent again (409)."""
    BUSY = "busy"
    """Send it again, but later: 429 and 503. Never "lost"."""
    SKEWED = "skewed"
    """The signature's time is off: correct the clock once."""
    EXPIRED = "expired"
    """The session token has expired: refresh it once."""
    REFUSED = "refused"
    """An error that no resend mends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A dialect of S3.

    Parameters
    ----------
    name:
        The name it is selected by.
    default_region:
        The region where none is configured; it is part of every signature.
    path_style:
        Whether the bucket stands in the path (`host/bucket/key`) or in the host's name.
    quoted_etag:
        Whether `If-Match` carries the ETag in quotes (RFC 9110 section 8.8.3) or bare.
    write_interval_s:
        Least time between a reply and the next write to the same key, in seconds.
    max_keys:
        Page size of LIST and of `DeleteObjects`.
    checks_signatures:
        Whether the service refuses wrong or old signatures.
    default_endpoint:
        The URL where none is configured, with `{region}`; None if an endpoint must be given.
    """

    name: str
    default_region: str = "us-east-1"
    path_style: bool = True
    quoted_etag: bool = True
    write_interval_s: float = 0.0
    max_keys: int = 1000
    checks_signatures: bool = True
    default_endpoint: str | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What a store that speaks this dialect can do."""
        return Capabilities(
            name=self.name,
            checks_signatures=self.checks_signatures,
            write_interval_s=self.write_interval_s,
            max_keys=self.max_keys,
        )

    def condition_headers(self, condition: Condition) -> dict[str, str]:
        """Return the headers that carry `condition` (RFC 9110 section 13.1)."""
        if isinstance(condition, Always):
            return {}
        if isinstance(condition, IfAbsent):
            return {"if-none-match": "*"}
        etag = condition.etag.strip('"')
        return {"if-match": f'"{etag}"' if self.quoted_etag else etag}

    def verdict(self, operation: Operation, status: int, code: str) -> Verdict:
        """Say what an answer means.

        Parameters
        ----------
        operation:
            The request.
        status:
            The HTTP status.
        code:
            The S3 error code, "" where the answer has none.
        """
        raise NotImplementedError
