"""Sections `http` and `webhooks` of a `langgraph.json`: access to the server, and targets of webhooks.

Wrong settings are reported and left out, and the graphs are served. A wrong setting that guards something
fails closed: an unreadable switch disables its routes, and a wrong policy refuses all webhooks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from perdure.agents.failures import explain_failure
from perdure.agents.loading import graphs_file, import_target, prepare, read_graphs_file
from perdure.kernel.errors import InvalidInput
from perdure.kernel.validation import explain
from perdure.outbox.webhooks.urls import MAX_URL, UrlPolicy

ANY: Final = "*"
DISABLES: Final = ("assistants", "threads", "runs", "store", "mcp", "a2a", "meta", "ui", "webhooks")
"""Names accepted in `http.disable_…`."""
HTTP: Final = frozenset(
    {
        "app",
        "configurable_headers",
        "cors",
        "enable_custom_route_auth",
        "logging_headers",
        "middleware_order",
        "mount_prefix",
        *(f"disable_{name}" for name in DISABLES),
    }
)
WEBHOOKS: Final = frozenset({"env_prefix", "url", "headers"})
ENV_PREFIX: Final = "LG_WEBHOOK_"
MAX_HEADERS: Final = 32
MAX_HEADER: Final = 4096
NEVER_CONFIGURABLE: Final = frozenset(
    {"authorization", "cookie", "x-api-key", "x-service-key", "x-tenant-id"}
)
"""Headers with credentials: only a pattern that names one exactly passes it to a run."""
NEVER_SENT: Final = frozenset({"content-length", "content-type", "host", "transfer-encoding", "user-agent"})
"""Headers of a webhook that the sender sets."""

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_TEMPLATE = re.compile(r"\$\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_UNLIKELY_ORIGIN = "https://an-origin-that-nobody-has.invalid:49151"

T = TypeVar("T")
Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)]


class Cors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which web pages may call the server, and how."""

    allow_origins: Names = ()
    allow_origin_regex: str | None = None
    allow_methods: Names | None = None
    allow_headers: Names | None = None
    allow_credentials: bool = False
    expose_headers: Names = ()
    max_age: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 600

    @property
    def allows_every_origin(self) -> bool:
        regex = self.allow_origin_regex
        matches = regex is not None and re.fullmatch(regex, _UNLIKELY_ORIGIN) is not None
        return ANY in self.allow_origins or matches


class HeaderRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Patterns with `*` for the request headers that a run gets in `configurable`."""

    includes: Names = ()
    excludes: Names = ()
    include: Names = ()
    exclude: Names = ()

    def allow(self, name: str) -> bool:
        """Return whether a header, in lower case, is included and not excluded."""
        excluded, included = (*self.excludes, *self.exclude), (*self.includes, *self.include)
        if any(fnmatchcase(name, pattern.lower()) for pattern in excluded):
            return False
        if name in NEVER_CONFIGURABLE:
            return name in map(str.lower, included)
        return any(fnmatchcase(name, pattern.lower()) for pattern in included)

    def chosen(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request that its run gets."""
        lowered = ((name.lower(), value) for name, value in headers.items())
        return {name: value for name, value in lowered if self.allow(name)}


@dataclass(frozen=True)
class HttpSection:
    """Settings of `http` and `webhooks`, and the errors in them."""

    cors: Cors | None = None
    configurable_headers: HeaderRules | None = None
    mount_prefix: str = ""
    disabled: frozenset[str] = frozenset()
    app: Any = None
    """The operator's own ASGI application."""
    app_is_public: bool = False
    """True if the application's routes are open to callers without a token."""
    webhook_policy: UrlPolicy | None = None
    webhook_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    failures: tuple[str, ...] = ()


def load_http(place: str | os.PathLike[str] = ".") -> HttpSection:
    """Load the sections `http` and `webhooks` in the `langgraph.json` of a directory."""
    path = graphs_file(place)
    try:
        content = read_graphs_file(path) if path.exists() else {}
    except InvalidInput:
        # The loading of graphs reports this error.
        content = {}
    failures: list[str] = []
    sections = content if isinstance(content, Mapping) else {}
    http = _parse_object(sections.get("http"), "http", HTTP, failures)
    webhooks = sections.get("webhooks")
    return HttpSection(
        cors=_parse_cors(http.get("cors"), failures),
        configurable_headers=_parse_part(
            http, "configurable_headers", HeaderRules, "write include", failures
        ),
        mount_prefix=_parse_prefix(http.get("mount_prefix"), failures),
        disabled=frozenset(_parse_disabled(http, failures)),
        app=_load_app(http.get("app"), path, failures),
        app_is_public=http.get("enable_custom_route_auth", True) is False,
        webhook_policy=_parse_policy(webhooks, failures),
        webhook_headers=_parse_webhook_headers(webhooks, failures),
        failures=tuple(f"{path}: {failure}" for failure in failures),
    )


def _parse_object(given: Any, name: str, names: frozenset[str], failures: list[str]) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        failures.append(f"{name} must be an object; it is ignored")
        return {}
    for part in given:
        if part not in names:
            failures.append(f"{name}.{part} is not known here; remove it, or see docs/langgraph.md")
    return given


def _parse_part(
    section: Mapping[str, Any], name: str, kind: type[T], advice: str, failures: list[str]
) -> T | None:
    given = section.get(name)
    if given is None:
        return None
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        failures.append(f"{explain(error, kind, f'http.{name}')}; it is ignored, so {advice} as documented")
        return None


# --- http -------------------------------------------------------------------------------------------------


def _parse_cors(given: Any, failures: list[str]) -> Cors | None:
    cors = _parse_part({"cors": given}, "cors", Cors, "write allow_origins", failures)
    if cors is None:
        return None
    try:
        every = cors.allows_every_origin
    except re.error as error:
        failures.append(f"http.cors.allow_origin_regex is no regular expression ({error}); it is ignored")
        cors = msgspec.structs.replace(cors, allow_origin_regex=None)
        every = cors.allows_every_origin
    if every and cors.allow_credentials:
        failures.append(
            "http.cors.allow_credentials is ignored, since every origin is allowed: name the origins"
        )
        cors = msgspec.structs.replace(cors, allow_credentials=False)
    return cors


def _parse_prefix(given: Any, failures: list[str]) -> str:
    if given in (None, "", "/"):
        return ""
    if isinstance(given, str) and _PREFIX.fullmatch(given.rstrip("/")):
        return given.rstrip("/")
    failures.append("http.mount_prefix must begin with a slash, such as /api; it is ignored")
    return ""


def _parse_disabled(http: Mapping[str, Any], failures: list[str]) -> Iterator[str]:
    for name in DISABLES:
        given = http.get(f"disable_{name}")
        if given is not None and not isinstance(given, bool):
            failures.append(f"http.disable_{name} must be true or false; {name} are disabled until it is")
            yield name
        elif given:
            yield name


def _load_app(given: Any, path: Path, failures: list[str]) -> Any:
    if given is None:
        return None
    if not isinstance(given, str):
        failures.append("http.app must be a path, such as ./app.py:app; it is not served")
        return None
    try:
        prepare(path)
        app = import_target(given, path.parent)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        failures.append(f"http.app: {explain_failure(error)}; it is not served")
        return None
    if not callable(app):
        failures.append(f"http.app: {given} is a {type(app).__name__}, no ASGI application; it is not served")
        return None
    return app


# --- webhooks ---------------------------------------------------------------------------------------------


def _parse_policy(given: Any, failures: list[str]) -> UrlPolicy | None:
    """Return the policy for URLs; a wrong one refuses every URL."""
    section = _parse_object(given, "webhooks", WEBHOOKS, failures)
    url = section.get("url")
    if url is None and isinstance(given, Mapping | None):
        return None
    try:
        policy = msgspec.convert(url, UrlPolicy)
    except msgspec.ValidationError as error:
        reason = explain(error, UrlPolicy, "webhooks.url")
        failures.append(f"{reason}; no run may have a webhook until this is fixed")
        return UrlPolicy(refused="the policy for webhooks in langgraph.json is wrong; see the server's log")
    if policy.max_url_length > MAX_URL:
        failures.append(f"webhooks.url.max_url_length is at most {MAX_URL} here")
    if policy.disable_loopback is False:
        failures.append("webhooks.url.disable_loopback is always true here: give webhooks as full URLs")
    return policy


def _parse_webhook_headers(given: Any, failures: list[str]) -> dict[str, str]:
    section = given if isinstance(given, Mapping) else {}
    headers, prefix = section.get("headers") or {}, section.get("env_prefix") or ENV_PREFIX
    if not isinstance(headers, Mapping) or not isinstance(prefix, str) or len(headers) > MAX_HEADERS:
        failures.append(f"webhooks.headers must be an object of at most {MAX_HEADERS} texts; it is ignored")
        return {}
    values: dict[str, str] = {}
    for name, text in headers.items():
        try:
            values[name] = _check_header(name, text, prefix)
        except InvalidInput as error:
            failures.append(f"webhooks.headers.{name}: {error.message}; it is not sent")
    return values


def _check_header(name: str, text: Any, prefix: str) -> str:
    if not _HEADER.fullmatch(name) or name.lower() in NEVER_SENT or name.lower().startswith("webhook-"):
        raise InvalidInput("this header cannot be set")

    def variable(match: re.Match[str]) -> str:
        if not match[1].startswith(prefix):
            raise InvalidInput(f"the variable {match[1]} must begin with {prefix}")
        if match[1] not in os.environ:
            raise InvalidInput(f"the variable {match[1]} is not set")
        return os.environ[match[1]]

    if not isinstance(text, str):
        raise InvalidInput("its value must be a string")
    value = _TEMPLATE.sub(variable, text)
    if len(value) > MAX_HEADER or not value.isprintable():
        raise InvalidInput("its value is too long, or has characters that are not allowed in a header")
    return value
