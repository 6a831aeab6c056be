"""Resources that algorithms tune and agents use, distinguished on the wire by `resource_type`."""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from msgspec import field, structs

from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import CheckedRecord
from perdure.rollouts.records import AttemptedRollout

__all__ = [
    "LLM",
    "NamedResources",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "validate_resources",
]

MAX_PROMPT = 2**20
"""Maximum length of a rendered prompt, in characters."""

_MAX_FORMAT_DIGITS = 3
_CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


class Resource(CheckedRecord, kw_only=True):
    """Something that an algorithm provides to its agents."""

    resource_type: Any
    """The kind of resource."""


class LLM(Resource, kw_only=True):
    """A model behind an OpenAI-compatible endpoint."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = field(default_factory=dict)

    def get_base_url(self, *args: Any, **kwargs: Any) -> str:
        """Return the URL for a client; it is the same for every rollout and attempt."""
        return self.endpoint

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        fields = structs.asdict(self) | ({"api_key": "***"} if self.api_key else {})
        return list(fields.items())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class ProxyLLM(LLM, kw_only=True):
    """A model behind a proxy that needs the id of the attempt that sends a request."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # type: ignore[assignment]

    def get_base_url(self, rollout_id: str | None, attempt_id: str | None) -> str:
        """Return the URL for an attempt, or the plain endpoint if both ids are None."""
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if not isinstance(rollout_id, str) or not isinstance(attempt_id, str):
            raise InvalidInput("rollout_id and attempt_id must both be strings, or both be None")
        base = self.endpoint.removesuffix("/")
        root = base.removesuffix("/v1")
        return f"{root}/rollout/{rollout_id}/attempt/{attempt_id}{base[len(root) :]}"

    def with_attempted_rollout(self, rollout: AttemptedRollout) -> LLM:
        """Return a plain LLM whose endpoint contains the attempt."""
        return LLM(
            endpoint=self.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=self.sampling_parameters,
        )


class PromptTemplate(Resource, kw_only=True):
    """A prompt with placeholders."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Literal["jinja", "f-string", "poml"]

    def format(self, /, **kwargs: Any) -> str:
        """Fill in the placeholders.

        The `f-string` engine supports only names, no attributes and no indexes. `jinja` renders plain data in
        a sandbox. `poml` is stored but not rendered here, because such a template runs as a program.
        """
        rendered = _ENGINES[self.engine](self.template, kwargs)
        if len(rendered) > MAX_PROMPT:
            raise InvalidInput(f"the prompt is longer than {MAX_PROMPT} characters")
        return rendered


def _format_names(template: str, values: Mapping[str, Any]) -> str:
    return "".join(_literals_and_values(template, values))


def _literals_and_values(template: str, values: Mapping[str, Any]) -> Iterator[str]:
    try:
        for literal, name, spec, conversion in string.Formatter().parse(template):
            yield literal
            if name is not None:
                yield _format_name(name, spec or "", conversion, values)
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the template cannot be formatted: {error}") from error


def _format_name(name: str, spec: str, conversion: str | None, values: Mapping[str, Any]) -> str:
    # str.format would read attributes and indexes, and so expose everything that a value can reach.
    if not name.isidentifier():
        raise InvalidInput(f"the template may only name values, and {name!r} is not a name")
    if name not in values:
        raise InvalidInput(f"the template needs a value for {name!r}")
    if (conversion and conversion not in _CONVERSIONS) or not _is_modest(spec):
        raise InvalidInput(f"the template formats {name!r} in a way that is not supported")
    value = _CONVERSIONS[conversion](values[name]) if conversion else values[name]
    return format(value, spec)


def _is_modest(spec: str) -> bool:
    """Return whether a format has no nested fields and no width that would exhaust the memory."""
    numbers = "".join(char if char.isdigit() else " " for char in spec).split()
    return "{" not in spec and all(len(number) <= _MAX_FORMAT_DIGITS for number in numbers)


def _render_jinja(template: str, values: Mapping[str, Any]) -> str:
    environment = _engine_module("jinja2.sandbox", "jinja", "jinja2").ImmutableSandboxedEnvironment()
    environment.globals.clear()
    environment.intercepted_binops = frozenset({"*", "%", "**"})
    environment.binop_table |= {
        "*": _numbers_only(operator.mul),
        "%": _numbers_only(operator.mod),
        "**": _refuse_operands,
    }
    failures = (import_module("jinja2").TemplateError, ArithmeticError, LookupError, TypeError, ValueError)
    try:
        return "".join(_capped(environment.from_string(template).generate(**_plain(values))))
    except failures as error:
        raise InvalidInput(f"the template cannot be rendered: {error}") from error


def _numbers_only(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Restrict an operator to numbers, so that it cannot create a giant string or list."""

    def checked(left: Any, right: Any) -> Any:
        return (
            operate(left, right)
            if isinstance(left, int | float) and isinstance(right, int | float)
            else _refuse_operands()
        )

    return checked


def _refuse_operands(*_: Any) -> NoReturn:
    raise TypeError("the operator is only for numbers, and powers are not supported")


def _capped(chunks: Iterator[str]) -> Iterator[str]:
    length = 0
    for chunk in chunks:
        length += len(chunk)
        yield chunk
        if length > MAX_PROMPT:
            return


def _refuse_poml(template: str, values: Mapping[str, Any]) -> str:
    raise InvalidInput(
        "a poml template runs as a program and is not rendered here; use the poml package on it"
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = decode_json(encode_json(dict(values), what="the template's values"))
    return plain


def _engine_module(module: str, engine: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        message = f"the {engine} engine needs the {package} package, which is not installed"
        raise InvalidInput(message) from error


_ENGINES = {"f-string": _format_names, "jinja": _render_jinja, "poml": _refuse_poml}

ResourceUnion = LLM | ProxyLLM | PromptTemplate

if TYPE_CHECKING:
    NamedResources = dict[str, ResourceUnion]
else:
    # msgspec cannot distinguish the members of the union: `validate_resources` does.
    NamedResources = dict[str, Any]


class ResourcesUpdate(CheckedRecord, kw_only=True):
    """A version of a set of named resources."""

    resources_id: str
    create_time: float
    update_time: float
    version: int
    resources: NamedResources

    def __post_init__(self) -> None:
        CheckedRecord.__post_init__(self)
        self.resources = validate_resources(self.resources)


_TYPES: dict[Any, type[ResourceUnion]] = {
    "llm": LLM,
    "proxy_llm": ProxyLLM,
    "prompt_template": PromptTemplate,
}


def validate_resources(obj: object) -> NamedResources:
    """Return named resources as records, from records or from mappings with a `resource_type`."""
    if not isinstance(obj, Mapping):
        raise InvalidInput(f"resources must be an object, not {type(obj).__name__}")
    return {_resource_name(name): _resource(name, resource) for name, resource in obj.items()}


def _resource_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"the names of resources must be strings, not {type(name).__name__}")
    return name


def _resource(name: str, resource: Any) -> ResourceUnion:
    if isinstance(resource, ResourceUnion):
        return resource
    if not isinstance(resource, Mapping) and callable(getattr(resource, "model_dump", None)):
        resource = resource.model_dump()
    if not isinstance(resource, Mapping):
        raise InvalidInput(f"resource {name!r} must be an object, not {type(resource).__name__}")
    kind = resource.get("resource_type")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise InvalidInput(f"resource {name!r} has an unknown resource_type: {kind!r}")
    return _TYPES[kind].model_validate(resource)
