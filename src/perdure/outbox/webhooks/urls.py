"""Destinations of webhooks: rules for URLs, and for the addresses of their hosts.

Allowed ports are 80, 443, 8080, 8443, and the port of an allowed host. If private addresses are allowed, so
are all ports from 1024 on. If loopback is allowed, so are all ports of this machine. Other addresses must be
global unicast. If private addresses are allowed, so are those of the machine and its networks, but never
link-local ones, where clouds serve credentials.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Annotated, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from perdure.kernel.checks import check_text
from perdure.kernel.config import mask_url
from perdure.kernel.errors import InvalidInput

__all__ = [
    "UrlPolicy",
    "WebhookTarget",
    "check_webhook_url",
    "literal_address",
    "mask_target",
    "parse_target",
    "refused_address",
]

MAX_URL = 2048
PORTS = frozenset({80, 443, 8080, 8443})
FIRST_FREE_PORT = 1024
SCHEMES = {"http": 80, "https": 443}

_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f\\\u2028\u2029]")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_USER = re.compile(r"^([^:/?#]+://)[^/?#]*@")

_V4_REFUSED = (
    IPv4Network("192.0.0.0/24"),  # protocol assignments
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("168.63.129.16/32"),  # the platform's services in every Azure machine
)
_V6_UNICAST = IPv6Network("2000::/3")
_V6_REFUSED = (
    IPv6Network("2001::/23"),  # protocol assignments, Teredo among them
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
)
_SIX_TO_FOUR = IPv6Network("2002::/16")
_NAT64 = IPv6Network("64:ff9b::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_METADATA = (IPv6Address("fd00:ec2::254"), IPv4Address("100.100.100.200"), IPv4Address("168.63.129.16"))
"""Addresses where clouds serve credentials, in addition to link-local ones."""
_ISATAP = (0x00005EFE, 0x02005EFE)


class WebhookTarget(NamedTuple):
    """A parsed webhook URL."""

    url: str
    """URL without credentials."""
    scheme: str
    host: str
    port: int
    credentials: str | None
    """Decoded `user:password`."""


class UrlPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project's rules for the URLs of its webhooks, in addition to the settings."""

    require_https: bool = False
    allowed_domains: tuple[str, ...] = ()
    allowed_ports: tuple[Annotated[int, msgspec.Meta(ge=1, le=65_535)], ...] = ()
    max_url_length: Annotated[int, msgspec.Meta(ge=1)] = MAX_URL
    disable_loopback: bool = True
    """Relative URLs are always refused."""
    refused: str | None = None
    """Reason why every URL is refused."""


NO_POLICY = UrlPolicy()


def check_webhook_url(
    url: str,
    *,
    allow_private: bool = False,
    allow_loopback: bool = False,
    allowed_hosts: Sequence[str] = (),
    policy: UrlPolicy | None = None,
) -> str:
    """Check the text of a webhook URL and return it; its addresses are checked at each delivery."""
    policy = policy or NO_POLICY
    target = parse_target(url)
    _check_policy(target, url, policy)
    address = literal_address(target.host)
    local = _is_local(target.host) if address is None else address.is_loopback
    here = allow_loopback and local
    if address is None and local and not (allow_private or here):
        raise InvalidInput(f"webhook {mask_target(url)!r}: {target.host} is this machine")
    if address is not None and not here:
        reason = refused_address(target.host, allow_private=allow_private)
        if reason is not None:
            raise InvalidInput(f"webhook {mask_target(url)!r}: {reason}")
    named = _check_host(target, url, allowed_hosts)
    free = here or (allow_private and target.port >= FIRST_FREE_PORT)
    if target.port not in (policy.allowed_ports or PORTS) and not named and not free:
        ports = ", ".join(map(str, sorted(policy.allowed_ports or PORTS)))
        raise InvalidInput(f"webhook {mask_target(url)!r}: the port must be one of {ports}")
    return url


def _check_policy(target: WebhookTarget, url: str, policy: UrlPolicy) -> None:
    if policy.refused is not None:
        raise InvalidInput(f"webhooks are refused: {policy.refused}")
    if len(url) > policy.max_url_length:
        raise InvalidInput(f"webhook: the URL has more than {policy.max_url_length} characters")
    if policy.require_https and target.scheme != "https":
        raise InvalidInput(f"webhook {mask_target(url)!r}: only https is allowed here")
    if policy.allowed_domains:
        _check_host(target, url, policy.allowed_domains)
    if policy.allowed_ports and target.port not in policy.allowed_ports:
        raise InvalidInput(f"webhook {mask_target(url)!r}: the port {target.port} is not allowed here")


def parse_target(url: str) -> WebhookTarget:
    """Parse a URL; InvalidInput for one that two programs could read differently."""
    check_text(url, "webhook", max_length=MAX_URL)
    if _UNSAFE.search(url):
        raise InvalidInput("webhook must not contain spaces, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"webhook {mask_target(url)!r} is not a URL") from None
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise InvalidInput(
            f"webhook {mask_target(url)!r} must begin with http:// or https:// and name a host"
        )
    if port == 0 or parts.netloc.count("@") > 1:
        raise InvalidInput(f"webhook {mask_target(url)!r} is not a URL")
    host = _host(parts, url)
    at = parts.netloc.rpartition("@")[2]
    bare = parts._replace(netloc=at, fragment="").geturl()
    credentials = unquote(parts.username or "") + ":" + unquote(parts.password or "")
    port = port or SCHEMES[parts.scheme]
    return WebhookTarget(bare, parts.scheme, host, port, credentials if "@" in parts.netloc else None)


def mask_target(url: str) -> str:
    """Mask all credentials in a URL, for logs and lists."""
    return mask_url(_USER.sub(r"\1***@", url))


def _host(parts: SplitResult, url: str) -> str:
    host = (parts.hostname or "").lower()
    bracketed = "[" in parts.netloc.rpartition("@")[2]
    address = literal_address(host)
    if address is not None and bracketed == isinstance(address, IPv6Address):
        return host
    last = host.rstrip(".").rpartition(".")[2]
    # Some programs read a name that ends in a number as an address: 2130706433 and 127.1 are this machine.
    if bracketed or len(host) > 253 or not _NAME.fullmatch(host) or _NUMBER.fullmatch(last):
        raise InvalidInput(
            f"webhook {mask_target(url)!r}: the host must be a name in ASCII (xn-- for other scripts), "
            "an IPv4 address of four decimal numbers, or an IPv6 address in brackets"
        )
    return host


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is, or None for a name. An IPv6 address with a zone is neither."""
    if "%" in host:
        return None
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    name = host.rstrip(".")
    return name == "localhost" or name.endswith((".localhost", ".localdomain"))


# --- allowed hosts ----------------------------------------------------------------------------------------


def _check_host(target: WebhookTarget, url: str, allowed_hosts: Sequence[str]) -> bool:
    """Refuse a host that is not among the allowed ones, if any; return whether its port is named."""
    entries = [_entry(entry) for entry in allowed_hosts]
    fitting = [port for host, port in entries if _fits(target.host, host) and port in (None, target.port)]
    if entries and not fitting:
        raise InvalidInput(f"webhook {mask_target(url)!r}: {target.host} is not among the allowed hosts")
    return target.port in fitting


def _entry(text: str) -> tuple[str, int | None]:
    """Parse `host`, `host:port`, `*.domain`, an address, or `[address]:port`."""
    text = text.strip().lower()
    head, _, tail = text.rpartition(":")
    if head and tail.isdigit() and (head.endswith("]") or ":" not in head):
        return head.strip("[]"), int(tail)
    return text.strip("[]"), None


def _fits(host: str, pattern: str) -> bool:
    host, pattern = host.rstrip("."), pattern.rstrip(".")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern


# --- addresses --------------------------------------------------------------------------------------------


def refused_address(text: str, *, allow_private: bool, allow_loopback: bool = False) -> str | None:
    """Return why no webhook may go to an address, or None."""
    address = ip_address(text)
    if allow_loopback and address.is_loopback:
        return None
    inner = _embedded(address)
    if allow_private:
        wrong = _is_never(address) or (inner is not None and _is_never(inner))
        return f"{text} is an address that webhooks can never use" if wrong else None
    if not _is_public(address) or (inner is not None and not _is_public(inner)):
        return f"{text} is not a public address"
    return None


def _is_never(address: IPv4Address | IPv6Address) -> bool:
    """Return whether no webhook may ever go to an address: unassigned, multicast, or serving credentials."""
    site_local = isinstance(address, IPv6Address) and address.is_site_local
    special = address.is_unspecified or address.is_multicast or address.is_link_local or site_local
    if isinstance(address, IPv4Address) and (address in IPv4Network("0.0.0.0/8") or address.is_reserved):
        return True
    return special or address in _METADATA


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        refused = any(address in network for network in _V4_REFUSED)
        return address.is_global and not address.is_multicast and not address.is_reserved and not refused
    if address in _NAT64:
        return True
    refused = any(address in network for network in _V6_REFUSED)
    return address in _V6_UNICAST and address.is_global and not refused


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that the network extracts from an IPv6 address, or None."""
    if isinstance(address, IPv4Address):
        return None
    number = int(address)
    if address in _MAPPED or address in _NAT64 or (number >> 32 == 0 and number > 1):
        return IPv4Address(number & 0xFFFFFFFF)
    if address in _SIX_TO_FOUR:
        return IPv4Address(number >> 80 & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        return IPv4Address(number & 0xFFFFFFFF)
    return None
