"""MiniStack: takes any secret and any age of a signature."""

from __future__ import annotations

from .generic import GenericDriver

DRIVER = GenericDriver(name="ministack", checks_signatures=False)
