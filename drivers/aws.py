"""Amazon S3."""

from __future__ import annotations

from dataclasses import dataclass

from buquet.store.driver import Operation, Verdict

from .generic import GenericDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsDriver(GenericDriver):
    """Amazon S3: the bucket stands in the host's name."""

    path_style: bool = False
    default_endpoint: str | None = "https://s3.{region}.amazonaws.com"

    def verdict(self, operation: Operation, status: int, code: str) -> Verdict:
        """Say what an answer means; see `Driver.verdict`."""
        if operation is Operation.CREATE_BUCKET and code == "BucketAlreadyExists":
            # Names are global here: the bucket is another account's, and tasks must not go there.
            # https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateBucket.html#API_CreateBucket_Errors
            return Verdict.REFUSED
        # The base by name: `super()` does not work in a dataclass with slots.
        return GenericDriver.verdict(self, operation, status, code)


DRIVER = AwsDriver(name="aws")
