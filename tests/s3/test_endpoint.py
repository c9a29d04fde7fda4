"""Addresses: path style, virtual-hosted style, ports and base paths."""

from __future__ import annotations

import pytest

from buquet.s3.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "bucket", "path_style", "host", "path"),
    [
        ("http://localhost:4566", "jobs", True, "localhost:4566", "/jobs/a b"),
        ("http://localhost:4566/", "jobs", True, "localhost:4566", "/jobs/a b"),
        ("https://HOST:443", "jobs", True, "host", "/jobs/a b"),
        ("http://host:443", "jobs", True, "host:443", "/jobs/a b"),
        ("http://[::1]:80", "jobs", True, "[::1]", "/jobs/a b"),
        ("https://x.example/storage/v1/s3/", "jobs", True, "x.example", "/storage/v1/s3/jobs/a b"),
        ("https://s3.eu-west-1.amazonaws.com", "jobs", False, "jobs.s3.eu-west-1.amazonaws.com", "/a b"),
        # Neither fits the certificate's wildcard.
        ("https://s3.amazonaws.com", "my.jobs", False, "s3.amazonaws.com", "/my.jobs/a b"),
        ("https://s3.amazonaws.com", "My_jobs", False, "s3.amazonaws.com", "/My_jobs/a b"),
    ],
)
def test_address(url, bucket, path_style, host, path):
    endpoint = Endpoint.resolve(url, bucket, path_style=path_style)
    assert (endpoint.host, endpoint.path("a b")) == (host, path)


def test_the_bucket_itself():
    assert Endpoint.resolve("http://host", "jobs", path_style=True).path() == "/jobs"
    assert Endpoint.resolve("http://host", "jobs", path_style=False).path() == "/"
