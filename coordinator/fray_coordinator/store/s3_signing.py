"""Signs requests to S3 (AWS Signature Version 4)."""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """The keys that sign requests. token: of keys that expire; "" for others."""

    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def query_text(query: Mapping[str, str]) -> str:
    """A query in the form that is signed and therefore sent: sorted and fully escaped."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))


def signed_headers(
    method: str,
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload: str,
    keys: S3Keys,
    region: str,
    now: float,
) -> dict[str, str]:
    """The headers of a request, with those that authenticate it.

    Args:
        path: as it is sent, escaped.
        query: from `query_text`.
        headers: headers of the request; all are signed.
        payload: the SHA-256 of the body, in hexadecimal digits.
        now: seconds since the epoch; the service accepts some minutes of difference.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    sent = {**headers, "Host": host, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    if keys.token:
        sent["x-amz-security-token"] = keys.token
    lines = sorted((name.lower(), " ".join(value.split())) for name, value in sent.items())
    names = ";".join(name for name, _ in lines)
    request = [method, path, query, *(f"{name}:{value}" for name, value in lines), "", names, payload]
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256("\n".join(request).encode()).hexdigest()
    signature = _signature(keys.secret, scope, "\n".join([ALGORITHM, stamp, scope, digest]))
    sent["Authorization"] = (
        f"{ALGORITHM} Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return sent


def _signature(secret: str, scope: str, text: str) -> str:
    return hmac.digest(_signing_key(secret, scope), text.encode(), "sha256").hex()


@lru_cache(maxsize=8)
def _signing_key(secret: str, scope: str) -> bytes:
    """The key for signatures; it is the same for all requests of a day."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
