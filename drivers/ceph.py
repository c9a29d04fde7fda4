"""Ceph's RADOS Gateway.

It compares `If-Match` with the bare ETag, so that the quoted form never matches. Of the
losers of a race about half are answered by 500 UnknownError, which leaves the outcome open
like any other 500.
"""

from __future__ import annotations

from .generic import GenericDriver

DRIVER = GenericDriver(name="ceph", quoted_etag=False)
