"""SeaweedFS.

It answers an `If-Match` on a missing key with 412, where AWS answers 404; both mean "not
met" in the generic dialect.
"""

from __future__ import annotations

from .generic import GenericDriver

DRIVER = GenericDriver(name="seaweedfs")
