"""Addresses of clients, including clients behind trusted proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

from perdure.kernel.errors import StartRefused

FORWARDED: Final = "x-forwarded-for"
MAX_HOPS: Final = 20
"""Maximum addresses read from X-Forwarded-For, from the last one."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The proxies whose X-Forwarded-For header is used: the setting `trusted_proxies`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._networks = tuple(map(_parse_network, names))

    def find_client(self, peer: str, read_headers: Callable[[str], Sequence[str]]) -> str:
        """Return the client's address: the last address in X-Forwarded-For that is not a trusted proxy.

        Return the peer's address if the peer is not trusted, or if the header has no such address.
        """
        if not self._networks or not self._trust(_parse_address(peer)):
            return peer
        hops = ",".join(read_headers(FORWARDED)).rsplit(",", MAX_HOPS)[-MAX_HOPS:]
        for hop in reversed(hops):
            address = _parse_address(hop)
            if address is None:
                break
            if not self._trust(address):
                return str(address)
        return peer

    def _trust(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _parse_network(name: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(name, strict=False)
    except ValueError:
        raise StartRefused(
            f"trusted_proxies: {name!r} is no address and no network; write 10.0.0.7 or 10.0.0.0/24"
        ) from None


def _parse_address(text: str) -> Address | None:
    """Parse `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` and `[2001:db8::1]:80`; return None for other text."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
