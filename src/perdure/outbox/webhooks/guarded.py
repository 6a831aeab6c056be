"""HTTP connections only to checked addresses, for webhooks and phases."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from perdure.kernel.errors import InvalidInput
from perdure.outbox.webhooks.urls import (
    UrlPolicy,
    WebhookTarget,
    check_webhook_url,
    literal_address,
    parse_target,
    refused_address,
)

ANSWER_BYTES = 64 << 10
RESOLVERS = 8

Resolve = Callable[[str, int], Sequence[str]]
"""Function that returns the addresses of a host in the order to try them; it may block."""


class NoAddress(OSError):
    """A host has no address now; it may have one later."""


class Guard:
    """Decides where requests may go: by the URL's text, and by the addresses of its host."""

    def __init__(
        self,
        *,
        allow_private: bool = False,
        allow_loopback: bool = False,
        allowed_hosts: Sequence[str] = (),
        policy: UrlPolicy | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._allowed: dict[str, bool] = {"allow_private": allow_private, "allow_loopback": allow_loopback}
        self._allowed_hosts = allowed_hosts
        self._policy = policy
        self._resolve = resolve or _look_up
        # A name server that never answers blocks only these threads.
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="perdure-webhooks")

    def check(self, url: str) -> WebhookTarget:
        """Parse a URL; InvalidInput if no request may go there."""
        check_webhook_url(url, allowed_hosts=self._allowed_hosts, policy=self._policy, **self._allowed)
        target = parse_target(url)
        parsed = URL(target.url)
        if (parsed.raw_host, parsed.port, parsed.scheme) != (target.host, target.port, target.scheme):
            raise InvalidInput(f"webhook to {target.host}: its URL can be read in two ways")
        return target

    async def addresses(self, target: WebhookTarget) -> tuple[str, ...]:
        """Return the addresses of the host; InvalidInput if any of them is refused."""
        if literal_address(target.host) is not None:
            return (target.host,)
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.run_in_executor(self._threads, self._resolve, target.host, target.port)
        except (socket.gaierror, UnicodeError) as error:
            raise NoAddress(f"{target.host} has no address: {type(error).__name__}") from error
        for address in addresses:
            reason = refused_address(address, **self._allowed)
            if reason is not None:
                raise InvalidInput(f"{target.host}: {reason}")
        if not addresses:
            raise NoAddress(f"{target.host} has no address")
        return tuple(addresses)


def build_authorization(target: WebhookTarget) -> dict[str, str]:
    """Build the header for the credentials of a URL, which are not sent in the URL."""
    if target.credentials is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(target.credentials.encode()).decode()}


def build_reason(target: WebhookTarget, error: BaseException) -> str:
    """Describe a connection error without the error's own text, which may contain the URL."""
    if isinstance(error, NoAddress):
        return str(error)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        detail = "its certificate is not trusted"
    elif isinstance(error, aiohttp.ClientConnectorError):
        detail = error.os_error.strerror or type(error.os_error).__name__
    else:
        detail = getattr(error, "strerror", None) or type(error).__name__
    return f"{target.host}:{target.port}: {detail}"


def _look_up(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class _Pinned(AbstractResolver):
    """Resolver that returns the checked addresses, without another lookup."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        return None


def pinned_session(addresses: Sequence[str], *, decompress: bool = False) -> aiohttp.ClientSession:
    """Create a session for one request that can connect only to these addresses."""

    def pinned_socket(info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        if address[0] not in addresses:
            raise OSError(f"{address[0]} was not among the checked addresses")
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        resolver=_Pinned(addresses),
        use_dns_cache=False,
        force_close=True,
        socket_factory=pinned_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=decompress,
        trust_env=False,
        # Reading stops at twice this size.
        read_bufsize=ANSWER_BYTES // 2,
    )
