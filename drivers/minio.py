"""MinIO.

Its deviations are within what the generic dialect allows for: 304 to a failed condition of a
PUT in older releases, 503 when a lock times out, a checksum asked for by `DeleteObjects`.
Releases before 2025-09-07 create a missing object on `If-Match`; the probe refuses those.
"""

from __future__ import annotations

from .generic import GenericDriver

DRIVER = GenericDriver(name="minio")
