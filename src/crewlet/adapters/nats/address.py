"""Where a broker is and how to be let in, checked before anything is opened; and the refusals of an unfit one."""

import importlib.util
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from crewlet.adapters.nats.translate import BrokerUnfit
from crewlet.kit.refusal import ConfigRefused

_CERTIFICATE_ALERTS = (
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_UNKNOWN",
)

# What OpenSSL calls X509_V_ERR_*: not valid yet, expired; of another host, of another IP address; and a certificate
# that is for another purpose, has too weak a key, or lacks what RFC 5280 asks for.
_NOT_NOW = {9, 10}
_ELSEWHERE = {62, 64}
_NOT_IN_FORM = {26, 66, 67, 68, *range(76, 95)}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where the broker is, and how to be let in.

    Attributes:
        urls: `nats://host:port`, `tls://host:port`; one is enough, the others of a cluster are learnt from it.
        token: the shared secret, or None.
        credentials: path of a credentials file (a JWT and its seed), or None.
        tls_ca, tls_cert, tls_key: paths of PEM files. With any of them, or a `tls://` URL, a server without TLS is
            refused before anything secret is sent.
        name: shown by the broker for this connection: the owner incarnation.
    """

    urls: tuple[str, ...]
    token: str | None = None
    credentials: str | Path | None = None
    tls_ca: str | Path | None = None
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    name: str = ""

    @property
    def needs_tls(self) -> bool:
        return bool(self.tls_ca or self.tls_cert) or any(url.startswith("tls://") for url in self.urls)


def tls_context(address: BrokerAddress) -> ssl.SSLContext | None:
    if not address.needs_tls:
        return None
    for path, where in (
        (address.tls_ca, "stream.tls.ca"),
        (address.tls_cert, "stream.tls.cert"),
        (address.tls_key, "stream.tls.key"),
    ):
        if path is not None:
            check_readable(path, where)
    try:
        context = ssl.create_default_context(cafile=address.tls_ca)
        # What one node of a fleet trusts must not hang on its Python. As in 3.13 and newer, all that stands in `ca` is
        # trusted, also below a root; unlike there, forms of RFC 5280 that private authorities often leave out are not
        # insisted on.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if address.tls_cert is not None:
            context.load_cert_chain(address.tls_cert, address.tls_key)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigRefused(
            f"the TLS files cannot be used ({error})", where="stream.tls", remedy="give PEM files that belong together"
        ) from error
    return context


def check_urls(urls: tuple[str, ...]) -> None:
    for url in urls:
        try:
            parts = urlsplit(url)
            is_usable = parts.scheme in {"nats", "tls"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ConfigRefused(
                f"{url!r} is not the address of a broker", where="stream.url", remedy="write nats://host:port"
            )
    if not urls:
        raise ConfigRefused("no broker is named", where="stream.url", remedy="write nats://host:port")


def check_readable(path: str | Path, where: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConfigRefused(
            f"{path} cannot be read ({error.strerror})", where=where, remedy="name a readable file"
        ) from error


def check_can_sign() -> None:
    if importlib.util.find_spec("nkeys") is None:
        raise ConfigRefused(
            "a credentials file needs the Python package nkeys, which is not installed",
            where="stream.credentials",
            remedy="install nats-py[nkeys], or use stream.token",
        )


def not_let_in(url: str, error: Exception) -> BrokerUnfit:
    refusal = BrokerUnfit(
        f"the broker at {url} refuses these credentials",
        where="stream.url",
        remedy="set stream.token or stream.credentials to what that broker accepts",
    )
    refusal.__cause__ = error
    return refusal


def without_tls(url: str) -> BrokerUnfit:
    return BrokerUnfit(
        f"the broker at {url} does not speak TLS, and stream.tls asks for it",
        where="stream.tls",
        remedy="enable TLS on the broker, or remove stream.tls",
    )


def certificate_refused(url: str, error: ssl.SSLError, *, is_named: bool) -> BrokerUnfit | None:
    """The refusal where the broker's TLS alert is about our certificate, or about there being none; else None."""
    if not any((error.reason or "").endswith(alert) for alert in _CERTIFICATE_ALERTS):
        return None
    refusal = BrokerUnfit(
        f"the broker at {url} refuses the certificate of stream.tls.cert ({spoken(error)})"
        if is_named
        else f"the broker at {url} asks for a certificate, and none is named",
        where="stream.tls.cert",
        remedy="name one that the broker trusts, and its key as stream.tls.key",
    )
    refusal.__cause__ = error
    return refusal


def spoken(error: Exception | None) -> str:
    """Why the broker could not be reached, in words."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error or "no answer") or repr(error)


def not_trusted(url: str, error: ssl.SSLCertVerificationError) -> BrokerUnfit:
    if error.verify_code in _NOT_NOW:
        where, fault, remedy = "stream.url", "not valid now", "renew it, or set the clock of this machine"
    elif error.verify_code in _ELSEWHERE:
        where, fault, remedy = "stream.url", "for another address", "name the broker as its certificate does"
    elif error.verify_code in _NOT_IN_FORM:
        where, fault, remedy = (
            "stream.url",
            "not in due form",
            "have it, or its authority's, issued again as RFC 5280 asks",
        )
    else:
        where, fault, remedy = "stream.tls.ca", "not trusted", "name the authority that signed it"
    reason = error.verify_message.rstrip(".")
    refusal = BrokerUnfit(f"the certificate of the broker at {url} is {fault} ({reason})", where=where, remedy=remedy)
    refusal.__cause__ = error
    return refusal
