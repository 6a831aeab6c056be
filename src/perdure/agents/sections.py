"""Sections of a `langgraph.json` besides its graphs: auth, store, http, webhooks, and unsupported ones.

Wrong settings of `store`, `http` and `webhooks` are reported and left out, and the graphs are served. A wrong
setting that guards something fails closed: an unreadable switch disables its routes, and a wrong policy
refuses all webhooks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from perdure.agents.loading import find_problems, graphs_file, import_target, prepare, read_graphs_file
from perdure.agents.project import explain_failure
from perdure.items.records import ItemPolicy
from perdure.items.vectors import ItemIndex
from perdure.kernel.checks import explain
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.outbox.webhooks.urls import MAX_URL, UrlPolicy

OURS: Final = frozenset(
    {"$schema", "auth", "checkpointer", "dependencies", "env", "graphs", "http", "store", "webhooks"}
)
"""Supported sections. The parsers of `store`, `http` and `webhooks` report unsupported keys in them."""
BUILDING: Final = frozenset(
    {
        "api_version",
        "base_image",
        "building",
        "dockerfile_lines",
        "image_distro",
        "keep_pkg_tools",
        "node_version",
        "pip_config_file",
        "pip_installer",
        "python_version",
        "source",
    }
)
"""Sections for building images, which are ignored."""
INSTEAD: Final[Mapping[str, str]] = {
    "checkpointer.path": "states are kept in perdure's own database",
    "checkpointer.serde": "only plain data and the types of the graph's state are decoded",
    "encryption": "encrypt the disk, or the database",
    "ui": "perdure serves no components",
    "ui_config": "perdure serves no components",
}
"""Advice for each unsupported section."""
AUTH: Final = frozenset({"path", "disable_studio_auth"})
CHECKPOINTER: Final = frozenset({"ttl"})


class ThreadTtl(msgspec.Struct, frozen=True, kw_only=True):
    """Default TTL of threads in minutes, and the action after it."""

    default_ttl: Annotated[float, msgspec.Meta(gt=0)] | None = None
    strategy: Literal["delete", "keep_latest"] = "delete"


def load_thread_ttl(place: str | os.PathLike[str] = ".") -> ThreadTtl:
    """Load the section `checkpointer.ttl` of a `langgraph.json`; InvalidInput if it is wrong."""
    path = graphs_file(place)
    section = _read_sections(path).get("checkpointer") or {}
    ttl = section.get("ttl") if isinstance(section, Mapping) else None
    try:
        return msgspec.convert(ttl or {}, ThreadTtl)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: checkpointer.ttl: {error}") from None


def load_auth(place: str | os.PathLike[str] = ".") -> Any | None:
    """Load the `langgraph_sdk.Auth` of a `langgraph.json`, or None if there is none.

    Raise InvalidInput if it cannot be loaded: the server must not start, because it could not authenticate.
    """
    path = graphs_file(place)
    section = _read_sections(path).get("auth")
    if section is None:
        return None
    if not isinstance(section, Mapping) or not isinstance(section.get("path"), str):
        raise InvalidInput(f"{path}: auth needs a path, such as ./auth.py:auth")
    try:
        prepare(path)
        return import_target(section["path"], path.parent)
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{path}: auth: {explain_failure(error)}") from error


def auth_path(place: str | os.PathLike[str] = ".") -> str | None:
    """Return the path of the custom auth in a `langgraph.json`, if there is one."""
    section = _read_sections(graphs_file(place)).get("auth")
    path = section.get("path") if isinstance(section, Mapping) else None
    return path if isinstance(path, str) else None


def _read_sections(path: Path) -> Mapping[str, Any]:
    """Read the sections of the file; none if the file does not exist."""
    if not path.exists():
        return {}
    try:
        content = read_graphs_file(path)
    except PerdureError as error:
        raise InvalidInput(f"{path}: {error.message}") from error
    return content if isinstance(content, Mapping) else {}


def unsupported(place: str | os.PathLike[str] = ".") -> list[str]:
    """Return the wrong and unsupported parts of a `langgraph.json`, each with advice."""
    path = graphs_file(place)
    try:
        content = _read_sections(path)
    except InvalidInput:
        # The loading of graphs reports this error.
        return []
    problems = (*find_problems(content, path.parent), *_find_unsupported(content))
    return [f"{path}: {problem}" for problem in problems]


def _find_unsupported(content: Mapping[str, Any]) -> Iterator[str]:
    for name, section in content.items():
        if name in OURS | BUILDING or section in (None, {}, []):
            continue
        yield _message(name, INSTEAD.get(name))
    for name, parts in (("auth", AUTH), ("checkpointer", CHECKPOINTER)):
        section = content.get(name)
        for part in section if isinstance(section, Mapping) else ():
            if part not in parts:
                yield _message(f"{name}.{part}", INSTEAD.get(f"{name}.{part}"))
    yield from _find_missing(content.get("dependencies"))


def _message(name: str, instead: str | None) -> str:
    return f"{name} is not supported here" + (f": {instead}" if instead else "")


def _find_missing(dependencies: Any) -> Iterator[str]:
    """Return the dependencies in the file that are not installed."""
    for part in dependencies if isinstance(dependencies, list) else ():
        if not isinstance(part, str) or part.startswith((".", "/")):
            continue
        name = _get_package(part)
        try:
            metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError):
            yield f"dependencies: {name} is not installed, and perdure installs nothing"


def _get_package(requirement: str) -> str:
    """Return the name of the package in a requirement such as `langchain[all]>=1`."""
    for stop, character in enumerate(requirement):
        if not (character.isalnum() or character in "-_."):
            return requirement[:stop]
    return requirement


KNOWN = ("ttl", "index")


@dataclass(frozen=True)
class ItemSetup:
    """Settings of items, and the errors in them."""

    policy: ItemPolicy = field(default_factory=ItemPolicy)
    index: ItemIndex | None = None
    failures: tuple[str, ...] = ()


class _Index(msgspec.Struct, kw_only=True):
    embed: str
    dims: int | None = None
    fields: list[str] | None = None


def load_items(place: str | os.PathLike[str] = ".") -> ItemSetup:
    """Load the settings of items in a directory's `langgraph.json`; wrong ones are reported and ignored."""
    path = graphs_file(place)
    section = _read_section(path)
    if not isinstance(section, Mapping):
        return ItemSetup(failures=(f"{path}: store must be an object",))
    failures = [f"{path}: store.{name} is not supported here" for name in section if name not in KNOWN]
    policy, index = ItemPolicy(), None
    try:
        policy = parse_item_policy(section.get("ttl") or {})
    except InvalidInput as error:
        failures.append(f"{path}: store.ttl: {error.message}")
    try:
        index = _index(section.get("index"), path)
    except InvalidInput as error:
        failures.append(f"{path}: store.index: {error.message}; nothing is searched by meaning")
    return ItemSetup(policy, index, tuple(failures))


def _read_section(path: Path) -> Any:
    try:
        content = read_graphs_file(path) if path.exists() else {}
    except InvalidInput:
        # The loading of graphs reports this error.
        return {}
    return (content.get("store") or {}) if isinstance(content, Mapping) else {}


def parse_item_policy(ttl: Mapping[str, Any]) -> ItemPolicy:
    """Parse a `ttl` section of LangGraph into a policy."""
    if not isinstance(ttl, Mapping):
        raise InvalidInput("it must be an object")
    settings = {name: ttl[name] for name in ItemPolicy.__struct_fields__ if ttl.get(name) is not None}
    try:
        policy = msgspec.convert(settings, ItemPolicy)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from None
    for name in ("default_ttl", "sweep_interval_minutes"):
        if (minutes := getattr(policy, name)) is not None and not minutes > 0:
            raise InvalidInput(f"{name} is {minutes}; it must be a number of minutes above 0")
    return policy


def _index(given: Any, path: Path) -> ItemIndex | None:
    if not given:
        return None
    try:
        wanted = msgspec.convert(given, _Index)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from None
    prepare(path)
    return ItemIndex(embed_named(wanted.embed, path.parent), dims=wanted.dims, fields=wanted.fields)


def embed_named(name: str, directory: Path) -> Any:
    """Load the function `module:name` or `./file.py:name`, or the model of this name in LangChain."""
    try:
        return import_target(name, directory)
    except PerdureError as error:
        reason = error.message
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything, and it is reported
        reason = f"{type(error).__name__}: {error}"
    if ".py:" in name:
        raise InvalidInput(f"embed {name!r} cannot be loaded: {reason}")
    return _load_by_langchain(name, reason)


def _load_by_langchain(name: str, reason: str) -> Any:
    try:
        embeddings = import_module("langchain.embeddings")
    except ImportError:
        raise InvalidInput(
            f"embed {name!r} cannot be loaded: {reason}; if it is the name of a model, install langchain"
        ) from None
    try:
        return embeddings.init_embeddings(name)
    except Exception as error:
        raise InvalidInput(f"embed {name!r} cannot be loaded: {type(error).__name__}: {error}") from error


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
"""Headers with credentials. A run gets such a header only if its full name is listed, without wildcards."""
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
        failures.append(f"{explain(error, kind, f'http.{name}')}; it is ignored; {advice} as documented")
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
            failures.append(f"http.disable_{name} must be true or false; until then, {name} are disabled")
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
