"""Where a bucket is: a service's URL, the bucket's name and the style of address in one.

Example::

    Endpoint.resolve("http://localhost:4566", "jobs", path_style=True).path("a b")   # "/jobs/a b"
    Endpoint.resolve("https://s3.eu-west-1.amazonaws.com", "jobs", path_style=False).host
    # "jobs.s3.eu-west-1.amazonaws.com"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_HOST_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,61})[a-z0-9]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A bucket's address.

    Parameters
    ----------
    scheme:
        `http` or `https`.
    host:
        The `Host` header: with the port unless it is the scheme's own.
    base:
        The path, not encoded, that stands for the bucket: without a `/` at the end.
    bucket:
        The bucket's name.
    """

    scheme: str
    host: str
    base: str
    bucket: str

    @classmethod
    def resolve(cls, url: str, bucket: str, *, path_style: bool) -> Endpoint:
        """Address `bucket` at the service `url`.

        Parameters
        ----------
        url:
            The service's http(s) URL, as `Settings` has checked it.
        bucket:
            The bucket's name.
        path_style:
            Whether the bucket stands in the path. If not it stands in the host's name, unless
            it is no DNS label: a name with dots would not match the wildcard of the service's
            certificate (https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html).
        """
        parts = urlsplit(url)
        host = _host(parts.hostname or "", parts.port, parts.scheme)
        base = unquote(parts.path).rstrip("/")
        if path_style or not _HOST_LABEL.fullmatch(bucket):
            return cls(parts.scheme, host, f"{base}/{bucket}", bucket)
        return cls(parts.scheme, f"{bucket}.{host}", base, bucket)

    def path(self, key: str = "") -> str:
        """Return the path of an object, or of the bucket itself; not encoded."""
        return f"{self.base}/{key}" if key or not self.base else self.base

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.base}"


def _host(name: str, port: int | None, scheme: str) -> str:
    if ":" in name:
        name = f"[{name}]"
    return name if port in (None, _DEFAULT_PORTS[scheme]) else f"{name}:{port}"
