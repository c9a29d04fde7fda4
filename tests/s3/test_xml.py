"""The XML of S3: what the stores write, and what must not be taken for it."""

from __future__ import annotations

import pytest

from buquet.s3.xml import (
    Error,
    Listing,
    MalformedXmlError,
    build_create_bucket,
    build_delete,
    parse_deleted,
    parse_error,
    parse_listing,
)

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def listing(key: str, etag: str, *, attributes: str = NAMESPACE, encoding: str = "url") -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult {attributes}><Name>jobs</Name>'
        f"<EncodingType>{encoding}</EncodingType><IsTruncated>true</IsTruncated>"
        f"<Contents><Key>{key}</Key><LastModified>2026-01-28T09:00:00.000Z</LastModified><ETag>{etag}</ETag>"
        "<Size>7</Size><StorageClass>STANDARD</StorageClass><Owner><ID>x</ID></Owner></Contents>"
        "</ListBucketResult>"
    ).encode()


@pytest.mark.parametrize("attributes", [NAMESPACE, ""])
@pytest.mark.parametrize("etag", ["&#34;e&#34;", '"e"', "&quot;e&quot;", "e"])  # SeaweedFS, LocalStack, Ceph
@pytest.mark.parametrize("key", ["a%2F+%2B%C3%A9", "a/%20%2B%C3%A9"])  # SeaweedFS, LocalStack
def test_a_listing(attributes, etag, key):
    expected = ("a/ +é", 7, "e", 1_769_590_800_000)
    assert parse_listing(listing(key, etag, attributes=attributes)) == Listing([expected], truncated=True)


def test_a_store_that_does_not_encode():
    assert parse_listing(listing("a+%20", "e", encoding="")).objects[0][0] == "a+%20"


def test_an_empty_listing():
    assert parse_listing(b"<ListBucketResult/>") == Listing([], truncated=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\x00",
        b"<html><p>gateway",
        b"<Error><Code>InternalError</Code></Error>",
        b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        b'<?xml version="1.0" encoding="bogus"?><ListBucketResult/>',
        listing("a", "e")[:-9],
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
    ],
)
def test_no_listing(body):
    with pytest.raises(MalformedXmlError):
        parse_listing(body)


def test_a_document_type_is_refused():
    body = b'<!DOCTYPE l [<!ENTITY e "x">]><ListBucketResult><Name>&e;</Name></ListBucketResult>'
    with pytest.raises(MalformedXmlError, match="document type"):
        parse_listing(body)


def test_failed_deletes():
    body = (
        f"<DeleteResult {NAMESPACE}><Error><Key>a&amp;b</Key><Code>AccessDenied</Code></Error>"
        "<Deleted><Key>c</Key></Deleted></DeleteResult>"
    )
    assert parse_deleted(body.encode()) == {"a&b": "AccessDenied"}


def test_an_error():
    body = (
        b"<Error><Code>C</Code><Message>M</Message><RequestId>R</RequestId><Region>eu-west-1</Region></Error>"
    )
    assert parse_error(body) == Error("C", "M", "R", "eu-west-1")


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b'{"code": 1}'])
def test_no_error(body):
    assert parse_error(body) == Error()


def test_bodies_escape_what_xml_reserves():
    assert b"<Quiet>true</Quiet><Object><Key>a&amp;&lt;b\xc3\xa9</Key></Object>" in build_delete(["a&<bé"])
    assert b"<LocationConstraint>eu-west-1</LocationConstraint>" in build_create_bucket("eu-west-1")
