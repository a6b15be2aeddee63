"""Reads the answers of S3: pages of listings, settings and errors, all of them XML."""

from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element, ParseError, fromstring


class S3Row(NamedTuple):
    """An object in a listing, in the service's words."""

    name: str
    etag: str
    last_modified: str


class S3Page(NamedTuple):
    """A page of a listing. token: of the next page; "" if this is the last."""

    rows: list[S3Row]
    token: str


def parse_page(body: bytes) -> S3Page:
    """A page of a listing. Raises `ValueError`."""
    page = parse_xml(body, "ListBucketResult")
    decoded = unquote_plus if page.findtext("EncodingType") == "url" else str
    rows = [
        S3Row(decoded(_text(item, "Key")), item.findtext("ETag", ""), item.findtext("LastModified", ""))
        for item in page.iter("Contents")
    ]
    token = page.findtext("NextContinuationToken", "")
    more = page.findtext("IsTruncated", str(bool(token))).lower() == "true"
    if more and not token:
        raise ValueError("the next page is not named")
    return S3Page(rows, token if more else "")


def parse_xml(body: bytes, kind: str | None = None) -> Element:
    """A document, its tags without their namespace. Raises `ValueError` for what is no XML, or no `kind`."""
    try:
        root = fromstring(body)
    except (ParseError, LookupError) as error:  # the latter for an encoding that nobody knows
        raise ValueError(f"it is no XML: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    if kind not in (None, root.tag):
        raise ValueError(f"it is no {kind}, but a {root.tag[:100]}")
    return root


def parse_error(body: bytes) -> tuple[str, str, str]:
    """The code, the message and the region in an error of S3; the text of what is none, as a proxy's page."""
    try:
        told = parse_xml(body, "Error")
    except ValueError:
        return "", body.decode(errors="replace"), ""
    return told.findtext("Code", ""), told.findtext("Message", ""), told.findtext("Region", "")


def _text(item: Element, name: str) -> str:
    text = item.findtext(name)
    if not text:
        raise ValueError(f"{name} is missing")
    return text
