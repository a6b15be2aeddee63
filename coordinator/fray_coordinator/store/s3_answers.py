"""Parses the XML answers of S3: pages of listings, settings and errors."""

from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element, ParseError, fromstring


class S3Row(NamedTuple):
    """An object in a listing, with the service's own texts."""

    name: str
    etag: str
    last_modified: str


class S3Page(NamedTuple):
    """A page of a listing. token: of the next page; "" if this is the last page."""

    rows: list[S3Row]
    token: str


def parse_page(body: bytes) -> S3Page:
    """Parse a page of a listing. Raises `ValueError`."""
    page = parse_xml(body, "ListBucketResult")
    decoded = unquote_plus if page.findtext("EncodingType") == "url" else str
    rows = [
        S3Row(decoded(_text(item, "Key")), item.findtext("ETag", ""), item.findtext("LastModified", ""))
        for item in page.iter("Contents")
    ]
    token = page.findtext("NextContinuationToken", "")
    if (count := page.findtext("KeyCount", "")).isdecimal() and int(count) > len(rows):
        raise ValueError(f"{count} objects are announced, and {len(rows)} are listed")
    more = page.findtext("IsTruncated", str(bool(token))).lower() == "true"
    if more and not token:
        raise ValueError("the next page is not named")
    return S3Page(rows, token if more else "")


def parse_xml(body: bytes, kind: str | None = None) -> Element:
    """Parse a document and strip namespaces from its tags. Raises `ValueError` if it is not XML, or not a `kind`."""
    try:
        root = fromstring(body)
    except (ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"it is no XML: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    if kind not in (None, root.tag):
        raise ValueError(f"it is no {kind}, but a {root.tag[:100]}")
    return root


def parse_error(body: bytes) -> tuple[str, str, str]:
    """The code, the message and the region in an error of S3; for anything else, such as a proxy's page, its text."""
    try:
        document = parse_xml(body, "Error")
    except ValueError:
        return "", body.decode(errors="replace"), ""
    return document.findtext("Code", ""), document.findtext("Message", ""), document.findtext("Region", "")


def _text(item: Element, name: str) -> str:
    text = item.findtext(name)
    if not text:
        raise ValueError(f"{name} is missing")
    return text
