"""Authenticates callers: credentials in headers and the login cookie, allowed hosts, web pages, rate limits.

The address of a caller is that of the client, also behind trusted proxies.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from perdure.access.guesses import UNLIMITED, Guess, RateBucket
from perdure.agents.sections import Cors
from perdure.kernel.checks import check_text
from perdure.kernel.errors import Forbidden, StartRefused, TooManyRequests, Unauthorized
from perdure.runtime.app import ANONYMOUS, StoreApp, is_loopback
from perdure.service.callers import Caller

# --- addresses --------------------------------------------------------------------------------------------


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


# --- the login cookie -------------------------------------------------------------------------------------


NAME: Final = "perdure"


def cookie_name(host: str | None) -> str:
    """Return the cookie's name with the port, because browsers share cookies between the ports of a host."""
    port = (host or "").rpartition(":")[2]
    return f"{NAME}_{port}" if port.isdecimal() else NAME


def secret_in_cookie(cookies: str | None, host: str | None) -> str | None:
    """Return the secret in a Cookie header, or None."""
    name = cookie_name(host)
    for part in (cookies or "").split(";"):
        key, equals, value = part.strip().partition("=")
        if equals and key == name and value:
            return value
    return None


# --- origins ----------------------------------------------------------------------------------------------


ANY = "*"
ANY_PORT = ":*"
MAX_ORIGIN = 512
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
LOCAL_ORIGINS = tuple(f"{scheme}://{name}{ANY_PORT}" for scheme in ("http", "https") for name in LOCAL_NAMES)
"""All pages that this machine serves."""


class Origins:
    """The allowed origins; `http://name:*` allows all ports of a name, `*` all origins."""

    def __init__(self, allowed: Sequence[str], more: Cors | None = None) -> None:
        if ANY in allowed and len(allowed) > 1:
            raise StartRefused("cors_allow_origins is either * or a list of origins")
        named = (*allowed, *(more.allow_origins if more is not None else ()))
        self.any = ANY in named or (more is not None and more.allows_every_origin)
        patterns = [*map(_build_pattern, named), *(_build_regexes(more) if more is not None else ())]
        self.none = not patterns
        self.pattern = re.compile(".*" if self.any else "|".join(patterns) or "(?!)")

    def allow(self, origin: str) -> bool:
        return len(origin) <= MAX_ORIGIN and self.pattern.fullmatch(origin) is not None


def _build_regexes(cors: Cors) -> Iterator[str]:
    if cors.allow_origin_regex is not None:
        yield f"(?:{cors.allow_origin_regex})"


def _build_pattern(origin: str) -> str:
    if origin.endswith(ANY_PORT):
        return re.escape(origin.removesuffix(ANY_PORT)) + r"(?::[0-9]{1,5})?"
    return re.escape(origin)


def is_own(origin: str, host: str | None) -> bool:
    """Return whether an origin is the server's, by the host of the request."""
    return host is not None and origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def parse_origin(url: str | None) -> str | None:
    """Return the origin of a URL, as browsers send it."""
    if url is None:
        return None
    parts = urlsplit(url.lower())
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.removesuffix(default)}"


# --- the gate ---------------------------------------------------------------------------------------------


MAX_SHOWN_ORIGIN = 200
MOUNTED = (
    "perdure is mounted in another web app, where every caller needs a key or a token: pass api_key to "
    "Perdure or set PERDURE_API_KEY, create a token with services.access.create_token, or pass "
    "insecure_no_auth=True"
)
OWN_SITES = ("same-origin", "none")
"""Sec-Fetch-Site of requests from our own pages, and of addresses that the user typed."""
SAFE_METHODS = ("GET", "HEAD")

Header = Callable[[str], str | None]


class Sender(NamedTuple):
    """The sender of a request: the address of its connection, and all values of a header by name."""

    peer: str
    read_headers: Callable[[str], Sequence[str]]


class Credentials(NamedTuple):
    """The credentials of a caller."""

    secret: str | None
    namespace: str | None


def credentials_from(header: Header) -> Credentials:
    """Read Authorization (Bearer or Basic), x-api-key and X-Perdure-Namespace.

    Basic carries the namespace as its user name and the secret as its password, for clients that accept only
    a URL.
    """
    user, secret = _authorization(header("authorization") or "")
    secret = secret or header("x-api-key") or None
    namespace = header("x-perdure-namespace") or user or None
    if namespace is not None:
        check_text(namespace, "the namespace")
    return Credentials(secret, namespace)


def _authorization(value: str) -> tuple[str | None, str | None]:
    scheme, _, rest = value.strip().partition(" ")
    if not scheme:
        return None, None
    if scheme.lower() == "bearer" and rest.strip():
        return None, rest.strip()
    if scheme.lower() != "basic":
        raise Unauthorized(f"Authorization must be Bearer or Basic, not {scheme[:20]!r}")
    try:
        user, _, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("the Basic credentials cannot be read") from None
    return user, password


class RequestGate:
    """Authenticates callers and limits their rate."""

    def __init__(self, app: StoreApp, *, closed: bool = False) -> None:
        self._app = app
        settings = app.settings
        self._closed = closed and not settings.insecure_no_auth
        self._hosts = frozenset(map(str.lower, (*LOCAL_NAMES, *settings.allowed_hosts)))
        # An app that mounts this server checks the host itself.
        self._checks_host = bool(settings.allowed_hosts) or (is_loopback(settings.host) and not closed)
        self._origins = Origins(settings.cors_allow_origins, app.http.cors)
        rate = settings.rate_limit
        self._calls = RateBucket(rate, max(rate, 10.0)) if rate is not None else None
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._public_origin = parse_origin(settings.public_url)

    def check_host(self, host: str | None) -> None:
        """Refuse unknown host names, to prevent DNS rebinding."""
        if self._checks_host and (host is None or _without_port(host.lower()) not in self._hosts):
            raise Forbidden("this host name is not answered here; name it in allowed_hosts to allow it")

    def check_page(self, header: Header) -> None:
        """Refuse a request from a web page of another origin, unless that origin is allowed."""
        origin, site = header("origin"), header("sec-fetch-site")
        if origin is not None and self._origins.allow(origin):
            return
        if origin is not None and not self._is_own(origin, header("host")):
            page = f"a web page of {origin[:MAX_SHOWN_ORIGIN]!r}"
        elif site is not None and site not in OWN_SITES:
            page = "a web page of another origin"
        else:
            return
        raise Forbidden(
            f"{page} sent this request, and no key is needed here. To allow the page, name its origin in "
            "cors_allow_origins"
        )

    async def admit(
        self, header: Header, sender: Sender, *, opens_page: bool = False, cookie_for: str | None = None
    ) -> Caller:
        """Authenticate the caller, or raise an error. With `opens_page`, a link on any page may lead here.

        `cookie_for` is the method of a request that may use the dashboard's login.
        """
        guess = Guess(self._app.guesses, self._proxies.find_client(*sender))
        caller = await self._authenticate(header, cookie_for, guess)
        if caller.actor == ANONYMOUS and self._closed:
            raise Unauthorized(MOUNTED)
        if caller.actor == ANONYMOUS and not opens_page:
            self.check_page(header)
        self.count(caller)
        return caller

    async def readmit(self, header: Header, *, cookie_for: str | None = None) -> None:
        """Refuse a caller whose token or login has ended since its admission."""
        await self._authenticate(header, cookie_for, UNLIMITED)

    async def _authenticate(self, header: Header, cookie_for: str | None, guess: Guess) -> Caller:
        secret, namespace = credentials_from(header)
        login = self._read_login(header, cookie_for) if secret is None else None
        if login is None:
            return await self._app.admit(secret, namespace, guess)
        try:
            return await self._app.admit_login(login, namespace, guess)
        except (Unauthorized, TooManyRequests):
            if await self._app.needs_secret():
                raise
            # Where no token is needed, an ended login must not refuse the caller.
            return await self._app.admit(None, namespace)

    def _read_login(self, header: Header, method: str | None) -> str | None:
        """Return the secret in the dashboard's cookie, which only requests of our own pages may use."""
        secret = None if method is None else secret_in_cookie(header("cookie"), header("host"))
        if secret is None or self._is_of_own_page(header, changes=method not in SAFE_METHODS):
            return secret
        raise Forbidden("the login of the dashboard works only in its own pages; send a token")

    def _is_of_own_page(self, header: Header, *, changes: bool) -> bool:
        """Return whether a page of this server sent a request. Changes need a header that proves it."""
        origin, site = header("origin"), header("sec-fetch-site")
        if origin is not None and not self._is_own(origin, header("host")):
            return False
        if site is not None:
            return site == "same-origin" or (site == "none" and not changes)
        return origin is not None or not changes

    def _is_own(self, origin: str, host: str | None) -> bool:
        """Return whether an origin is the server's: by the request's host, or by `public_url`."""
        return is_own(origin, host) or origin.lower() == self._public_origin

    def count(self, caller: Caller) -> None:
        """Refuse a caller that exceeds the rate limit."""
        if self._calls is not None:
            if not self._calls.has_room(caller.actor):
                raise TooManyRequests()
            self._calls.take(caller.actor)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
