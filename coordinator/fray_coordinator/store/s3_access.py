"""Access to an S3 bucket: its URL, its region, and the keys that sign requests (AWS Signature Version 4).

This module itself reads keys, region and endpoint from the environment or from a plain profile. For roles, single
sign-on, servers that give credentials to hosts and containers, and settings that change endpoints, it uses botocore.
That is imported only then, because the import and its description of S3 take longer than everything else in a command.
"""

import asyncio
import configparser
import hashlib
import hmac
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote, urlsplit

from fray_coordinator.store.interface import AttemptFailed, NotApplied, Refused
from fray_runtime.variables import check_for_libraries, read_variable, without_white_space

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


PLAIN_SETTINGS = frozenset(
    {
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "region",
        "endpoint_url",
        "ca_bundle",
        "output",
        "cli_pager",
        "cli_auto_prompt",
    }
)
"""Settings of a profile that this module understands; with any other setting, it uses botocore."""
BOTOCORE_VARIABLES = (
    "AWS_CREDENTIAL_EXPIRATION",
    "AWS_SECURITY_TOKEN",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_USE_DUALSTACK_ENDPOINT",
)
"""Variables that this module leaves to botocore."""
PLAIN_REGION = re.compile(r"(af|ap|ca|cn|eu|il|me|mx|sa|us|us-gov)-[a-z]+-\d")
"""Regions whose endpoints are named after them; other regions have domains of their own."""
HOST_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Bucket names that can be part of a host name; the certificate does not cover names with dots."""
KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
DEFAULT_REGION = "us-east-1"
"""Region where a bucket is looked for by default; S3 answers with the right region if the bucket is elsewhere."""


@dataclass(frozen=True, slots=True)
class S3Access:
    """The access to one bucket.

    Attributes:
        url: URL of the bucket, without a slash at its end.
        region: region that requests are signed for.
        credentials: `S3Keys`, or botocore's credentials, which renew themselves.
        ca_bundle: the file with certificate authorities that the profile names; "" for none.
    """

    url: str
    region: str
    credentials: Any
    ca_bundle: str = ""

    @property
    def region_remedy(self) -> str:
        """What to do if the region may be wrong."""
        return f"the region may be wrong: AWS_REGION, or the profile, says {self.region!r}; give the bucket's"

    async def keys(self) -> S3Keys:
        """The keys for the next request. Raises `AttemptFailed`."""
        if isinstance(self.credentials, S3Keys):
            return self.credentials
        if getattr(self.credentials, "refresh_needed", bool)():  # sends a request and would block the loop
            return await asyncio.to_thread(_frozen, self.credentials)
        return _frozen(self.credentials)


def find_access(bucket: str, region: str | None) -> S3Access:
    """Find the access to the bucket from this host. Raises `AttemptFailed`.

    region: the bucket's region as S3 named it; None if it is not known.
    """
    if bucket.endswith("--x-s3"):
        raise Refused(f"{bucket} is a directory bucket, which has no ordered listings; use a general purpose bucket")
    return plain_access(bucket, region, os.environ) or botocore_access(bucket, region)


def plain_access(bucket: str, region: str | None, variables: Mapping[str, str]) -> S3Access | None:
    """The access by the environment and a plain profile; None if botocore is needed."""
    read = partial(read_variable, environ=variables)
    profile = _profile(variables)
    if profile is None or profile.keys() - PLAIN_SETTINGS or any(map(read, BOTOCORE_VARIABLES)):
        return None
    named = any(map(read, KEY_VARIABLES[:2]))
    access, secret, token = ((read(name) if named else profile.get(name.lower())) or "" for name in KEY_VARIABLES)
    region = region or read("AWS_REGION") or read("AWS_DEFAULT_REGION") or profile.get("region") or DEFAULT_REGION
    endpoint = read("AWS_ENDPOINT_URL_S3") or read("AWS_ENDPOINT_URL") or profile.get("endpoint_url")
    url = _bucket_url(bucket, region, endpoint)
    if not (access and secret and url):
        return None
    return S3Access(url, region, S3Keys(access, secret, token), profile.get("ca_bundle", ""))


def _bucket_url(bucket: str, region: str, endpoint: str | None) -> str | None:
    if endpoint:
        return f"{endpoint.rstrip('/')}/{quote(bucket)}" if "://" in endpoint else None
    if not PLAIN_REGION.fullmatch(region):
        return None
    host = f"s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    return f"https://{bucket}.{host}" if HOST_BUCKET.fullmatch(bucket) else f"https://{host}/{quote(bucket)}"


def _profile(variables: Mapping[str, str]) -> dict[str, str] | None:
    """The settings of the profile in use; None if there is no such profile, or its files cannot be read."""
    read = partial(read_variable, environ=variables)
    named = read("AWS_DEFAULT_PROFILE") or read("AWS_PROFILE")
    name = named or "default"
    places = [
        (read("AWS_CONFIG_FILE") or "~/.aws/config", name if name == "default" else f"profile {name}"),
        (read("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", name),
    ]
    settings: dict[str, str] = {}
    found = False
    for path, section in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.path.expanduser(path), encoding="utf-8")
        except (OSError, ValueError, configparser.Error):
            return None
        if parser.has_section(section):
            found = True
            for key, text in parser.items(section):
                settings[key] = without_white_space(f"{path}: {section}: {key}", text, is_secret=True)
    return settings if found or not named else None


class _AboutToSend(Exception):
    """Carries the request that botocore was about to send."""


def botocore_access(bucket: str, region: str | None) -> S3Access:
    """The access that botocore would use: taken from its request to list the bucket. Raises `AttemptFailed`."""

    def stop(request: Any, **_: Any) -> None:
        raise _AboutToSend(request)

    check_for_libraries("AWS_")
    try:
        import botocore.session

        session = botocore.session.get_session()
        client = session.create_client("s3", region_name=region or read_variable("AWS_REGION"))
        client.meta.events.register("before-send.s3", stop)
        client.list_objects_v2(Bucket=bucket)
    except _AboutToSend as found:
        (request,) = found.args
        url = urlsplit(request.url)
        scope = re.search(rb"Credential=[^,]*/([^/,]+)/s3/", request.headers.get("Authorization", b""))
        if scope is None:
            raise Refused(f"requests to {bucket} are signed in a way that Fray does not know") from None
        place = f"{url.scheme}://{url.netloc}{url.path}".rstrip("/")
        bundle = session.get_scoped_config().get("ca_bundle", "")
        return S3Access(place, scope[1].decode(), session.get_credentials(), bundle)
    except Exception as error:  # botocore's many sources of credentials raise all kinds of errors
        raise _failure(error) from error
    raise AssertionError("nothing is sent")


def _frozen(credentials: Any) -> S3Keys:
    try:
        access, secret, token, *_ = credentials.get_frozen_credentials()
    except Exception as error:
        raise _failure(error) from error
    return S3Keys(access, secret, token or "")


def _failure(error: Exception) -> AttemptFailed:
    """The outcome of a request for which there are no keys."""
    if isinstance(error, ImportError):
        keys = "keys that are neither in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY nor in a plain profile"
        return Refused(f"{keys} need {error.name}, which is not installed; in a clone of Fray: pip install '.[s3]'")
    from botocore.exceptions import HTTPClientError, InvalidRegionError

    if isinstance(error, HTTPClientError | OSError):
        return NotApplied(f"the server that gives credentials does not answer: {error}")
    if isinstance(error, InvalidRegionError):
        return Refused(f"{error} Correct AWS_REGION, or the region of the profile")
    text = f"{error}; `aws configure` and the AWS_* variables say where credentials come from"
    return Refused(text, may_pass=True)
