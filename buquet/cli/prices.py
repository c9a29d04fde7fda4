"""What requests cost. One table; a change of a price is a change of one line and of its date.

Storage and traffic are left out: a queue's objects are small and do not stay.

Example::

    S3.cost({"put": 3_000_000, "get": 1_000_000})     # 15.4 dollars
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AS_OF = "2026-11-29"
"""When the prices were looked up."""

WRITES = {"put", "list", "delete_many", "create_bucket"}
"""Billed as PUT, COPY, POST or LIST. A batch delete is a POST; some vendors charge nothing for it."""

READS = {"get", "head"}


@dataclass(frozen=True, slots=True)
class Price:
    """A vendor's price of requests, in dollars a million; single deletes are free everywhere."""

    name: str
    writes: float
    reads: float
    note: str
    source: str

    def cost(self, requests: Mapping[str, float]) -> float:
        """Return what requests cost, in dollars; their kinds are those of `CountingStore`."""
        writes = sum(count for kind, count in requests.items() if kind in WRITES)
        reads = sum(count for kind, count in requests.items() if kind in READS)
        return (writes * self.writes + reads * self.reads) / 1e6


S3 = Price("S3 Standard, us-east-1", 5.00, 0.40, "", "https://aws.amazon.com/s3/pricing/")
R2 = Price(
    "Cloudflare R2, Standard",
    4.50,
    0.36,
    "the first 1 million writes and 10 million reads a month are free, and are not taken off here",
    "https://developers.cloudflare.com/r2/pricing/",
)
EXPRESS = Price(
    "S3 Express One Zone, us-east-1",
    1.13,
    0.03,
    "for comparison: no queue can be on it, its directory buckets list in no order",
    "https://aws.amazon.com/s3/faqs/",
)

PRICES = (S3, EXPRESS, R2)
