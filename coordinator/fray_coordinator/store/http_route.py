"""The way to a server: through which proxy, and which certificates count. Both come from the environment.

A setting that can never work is refused at once with the name of its variable. Repeating the request as in an outage
would keep the user waiting, and would then say that the storage does not answer.
"""

import base64
import os
import ssl
from dataclasses import dataclass
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit

from fray_coordinator.store.interface import Refused
from fray_layouts.errors import InvalidInput
from fray_runtime.variables import read_variable

BUNDLE_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables that name files with further certificate authorities."""
LASTING_TLS_ERRORS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "UNSUPPORTED_PROTOCOL",
        "NO_PROTOCOLS_AVAILABLE",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "TLSV1_UNRECOGNIZED_NAME",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "DH_KEY_TOO_SMALL",
    }
)
"""OpenSSL's reasons for which no repetition helps: the server speaks no TLS, or another version, or wants a client's
certificate. With other reasons, such as a connection that ends during the handshake, one may."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and the variable that names it."""

    variable: str
    url: SplitResult

    @property
    def rights(self) -> dict[str, str]:
        """The header with the user and the password of the proxy's URL, if it has any."""
        if not self.url.username:
            return {}
        pair = f"{unquote(self.url.username)}:{unquote(self.url.password or '')}"
        return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def refusal(self, status: int) -> Refused | None:
        """The refusal in a proxy's answer; None if a repetition may help."""
        if status == 407:
            remedy = "it wants another user and password: give http://user:password@host:port, escaped as in a URL"
        elif 400 <= status < 500 and status not in (408, 429):
            remedy = "let it allow this server, or name the server in NO_PROXY"
        else:
            return None
        return Refused(f"the proxy {name_of(self.url)} of {self.variable} answered HTTP {status}; {remedy}")


def name_of(place: SplitResult) -> str:
    """The host and the port of a URL, without a user and a password."""
    return place.netloc.rpartition("@")[2]


def proxy_for(target: SplitResult) -> Proxy | None:
    """The proxy for a server: by HTTPS_PROXY or HTTP_PROXY, else by ALL_PROXY, in small letters before capitals.

    HTTP_PROXY in capitals does not count in a CGI program, where whoever calls it may set this variable.

    Raises Refused: the variable names no proxy that works here.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    try:
        variable, text = _named_proxy(target.scheme)
        if not text or _is_bypassed(target, read_variable("no_proxy") or read_variable("NO_PROXY") or ""):
            return None
    except InvalidInput as error:
        raise Refused(str(error)) from error
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        usable = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        usable = False
    if not usable:
        shown = text.rpartition("@")[2]
        remedy = "give http://host:port or https://host:port (SOCKS is not supported), or name the server in NO_PROXY"
        raise Refused(f"{variable}: {shown!r} is no proxy that can be used; {remedy}")
    return Proxy(variable, url)


def _named_proxy(scheme: str) -> tuple[str, str]:
    """The variable that names the proxy for a scheme, and its text; empty texts if there is none."""
    for name in (f"{scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if variable == "HTTP_PROXY" and read_variable("REQUEST_METHOD") is not None:
                continue
            if (text := read_variable(variable)) is not None:
                if text:
                    return variable, text
                break  # set, but empty: no proxy by this name
    return "", ""


def _is_bypassed(target: SplitResult, exceptions: str) -> bool:
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

    return any(proxy_bypass_environment(host, {"no": exceptions}) for host in (name_of(target), target.hostname or ""))


@cache
def tls_context(profile_bundle: str = "") -> ssl.SSLContext:
    """A context that trusts the system's authorities (certifi's, if there are none) and those of named files.

    profile_bundle: the file that a profile of AWS names; "" for none.

    Raises Refused: a file that is named cannot be read, or has no certificates.
    """
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and not (paths.capath and os.listdir(paths.capath)):
        import certifi

        context.load_verify_locations(certifi.where())
    named = {variable: _bundle(variable) for variable in BUNDLE_VARIABLES}
    for setting, path in (*named.items(), ("ca_bundle of the profile", profile_bundle)):
        if path:
            _trust(context, setting, os.path.expanduser(path))
    return context


def _bundle(variable: str) -> str:
    try:
        return read_variable(variable) or ""
    except InvalidInput as error:
        raise Refused(str(error)) from error


def _trust(context: ssl.SSLContext, setting: str, path: str) -> None:
    try:
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(path)
    except OSError as error:  # ssl.SSLError is one
        why = "it has no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        remedy = "name a file with certificates in the PEM format, or remove the setting"
        raise Refused(f"{setting}: {path!r} cannot be used ({why}); {remedy}") from error


def tls_refusal(error: ssl.SSLError, place: str) -> Refused | None:
    """The refusal for an error of TLS; None if a repetition may help. place: whom it was with."""
    if isinstance(error, ssl.SSLCertVerificationError):
        named = ", ".join(f"{name}={path}" for name in BUNDLE_VARIABLES if (path := read_variable(name)))
        remedy = (
            f"if it is the right server, name the file with its authorities in AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE "
            f"(now {named or 'none is set'}), and check this host's clock"
        )
        return Refused(f"the certificate of {place} is not accepted ({error.verify_message}); {remedy}")
    if error.reason in LASTING_TLS_ERRORS:
        remedy = "correct the endpoint's or the proxy's address: http:// is for servers without TLS"
        return Refused(f"{place} and this host cannot encrypt their connection ({error.reason}); {remedy}")
    return None
