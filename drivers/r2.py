"""Cloudflare R2. Its endpoint is `https://ACCOUNT.r2.cloudflarestorage.com`."""

from __future__ import annotations

from dataclasses import dataclass

from buquet.store.driver import Operation, Verdict

from .generic import GenericDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class R2Driver(GenericDriver):
    """Cloudflare R2: one region, and one write a second to one key.

    https://developers.cloudflare.com/r2/platform/limits/
    """

    default_region: str = "auto"
    write_interval_s: float = 1.0

    def verdict(self, operation: Operation, status: int, code: str) -> Verdict:
        """Say what an answer means; see `Driver.verdict`."""
        if code == "ExpiredRequest":
            # 10018, "request signature has expired": https://developers.cloudflare.com/r2/api/error-codes/
            return Verdict.SKEWED
        if code == "ClientDisconnect":
            # 10054, a 400: the connection broke, and nothing says how far the request had come.
            return Verdict.UNDECIDED
        if operation is Operation.CREATE_BUCKET and code == "BucketConflict":
            # 10073, "bucket name already exists": names are an account's own here.
            return Verdict.DONE
        # The base by name: `super()` does not work in a dataclass with slots.
        return GenericDriver.verdict(self, operation, status, code)


DRIVER = R2Driver(name="r2")
