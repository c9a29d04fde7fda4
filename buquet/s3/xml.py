"""The XML of S3: listings, batch deletes and errors.

Elements are found whatever their namespace, because stores disagree about it. ETags are
returned without quotes. What is not the document that was asked for raises `MalformedXmlError`.

Example::

    parse_error(b"<Error><Code>NoSuchKey</Code></Error>").code     # "NoSuchKey"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

# Expat fetches nothing, and entities can only be declared by a DTD, which `_Builder` refuses.
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser
from xml.sax.saxutils import escape

from buquet._core.rfc3339 import parse_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class MalformedXmlError(ValueError):
    """A body is not the document that it should be."""


@dataclass(frozen=True, slots=True)
class Error:
    """An error as the store words it; a field that it leaves out is ""."""

    code: str = ""
    message: str = ""
    request_id: str = ""
    region: str = ""


Listed = tuple[str, int, str, int]
"""One object of a listing: its key, size in bytes, ETag, and the time of its last change in Unix ms."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a listing. `truncated`: more keys follow."""

    objects: list[Listed]
    truncated: bool


def parse_listing(body: bytes) -> Listing:
    """Read a `ListBucketResult`.

    Keys are decoded if the store says that it encoded them: a space is `+` at some stores
    and `%20` at others, a plus sign is `%2B` at all.
    """
    contents: list[Element] = []
    rest: dict[str, str | None] = {}
    for child in _root(body, "ListBucketResult"):
        name = child.tag.rpartition("}")[2]
        if name == "Contents":
            contents.append(child)
        else:
            rest[name] = child.text
    encoded = rest.get("EncodingType") == "url"
    try:
        objects = [_listed(element, encoded=encoded) for element in contents]
    except ValueError as error:
        raise MalformedXmlError(f"a listing with a wrong number or time: {error}") from None
    truncated = rest.get("IsTruncated") == "true"
    if truncated and not objects:
        raise MalformedXmlError("a listing that is cut off before its first key: nothing says where to go on")
    return Listing(objects, truncated)


def parse_deleted(body: bytes) -> dict[str, str]:
    """Read a `DeleteResult`; return the keys that failed, each with the code of its error."""
    root = _root(body, "DeleteResult")
    return {_text(element, "Key"): _text(element, "Code") for element in root.iterfind("{*}Error")}


def parse_error(body: bytes) -> Error:
    """Read an error; what is none (a proxy's HTML, nothing at all) gives an empty `Error`."""
    try:
        root = _root(body, "Error")
    except MalformedXmlError:
        return Error()
    return Error(
        code=_text(root, "Code"),
        message=_text(root, "Message"),
        request_id=_text(root, "RequestId"),
        region=_text(root, "Region"),
    )


def build_delete(keys: Iterable[str]) -> bytes:
    """Write the body of a `DeleteObjects` that answers with the failures alone."""
    objects = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
    return f'<Delete xmlns="{NAMESPACE}"><Quiet>true</Quiet>{objects}</Delete>'.encode()


def build_create_bucket(region: str) -> bytes:
    """Write the body of a `CreateBucket` in a region other than us-east-1."""
    constraint = f"<LocationConstraint>{escape(region)}</LocationConstraint>"
    return f'<CreateBucketConfiguration xmlns="{NAMESPACE}">{constraint}</CreateBucketConfiguration>'.encode()


class _Builder(TreeBuilder):
    """Builds a tree from a document without a DTD."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:  # noqa: ARG002 - as called
        raise MalformedXmlError(f"a document type ({name}) in a store's answer")


def _root(body: bytes, name: str) -> Element:
    parser = XMLParser(target=_Builder())  # noqa: S314 - see the import
    try:
        parser.feed(body)
        root: Element = parser.close()
    except (ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise MalformedXmlError(f"not XML: {error}") from None
    if root.tag.rpartition("}")[2] != name:
        raise MalformedXmlError(f"<{root.tag}> instead of <{name}>")
    return root


def _text(element: Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _listed(element: Element, *, encoded: bool) -> Listed:
    # A page has a thousand of them, and an exact tag is found three times as fast as one of any namespace.
    space = element.tag.removesuffix("Contents")
    key = element.findtext(f"{space}Key", "")
    if encoded and ("%" in key or "+" in key):
        key = unquote_plus(key)
    size = int(element.findtext(f"{space}Size", ""))
    etag = element.findtext(f"{space}ETag", "").strip('"')
    return key, size, etag, parse_ms(element.findtext(f"{space}LastModified", ""))
