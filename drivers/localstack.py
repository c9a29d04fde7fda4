"""LocalStack: takes any secret and any age of a signature."""

from __future__ import annotations

from .generic import GenericDriver

DRIVER = GenericDriver(name="localstack", checks_signatures=False)
