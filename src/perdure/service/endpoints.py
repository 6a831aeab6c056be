"""HTTP endpoints of service methods.

`@call` writes an `Endpoint` on a method of a service and returns the same function. Native routes, OpenAPI
document, scopes, idempotency keys and Python client are derived from it, so a method is written once. See
`Service` in `perdure.service.base`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET

from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput, PerdureError, error_named
from perdure.kernel.pages import Page, PaginatedResult, Part
from perdure.service.callers import Scope

PREFIX = "/api/v1"
"""Path prefix of the native API."""
MAX_BATCH = 1000
"""Maximum number of items in one request."""
KEY = "idempotency_key"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Errors = tuple[type[PerdureError], ...]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


class ItemList(msgspec.Struct, Generic[T], kw_only=True):
    """A complete list, without pages."""

    items: list[T]


class Address(NamedTuple):
    """HTTP method and path of a service method."""

    method: Method
    path: str
    query: bool = False
    """True if parameters are in the query although the method has a body."""

    @property
    def in_query(self) -> bool:
        """True if the parameters are in the query, not in a body."""
        return self.query or self.method in ("GET", "DELETE")


def GET(path: str) -> Address:  # noqa: N802 - named like the HTTP method
    """Build the address of a GET request."""
    return Address("GET", path)


def POST(path: str, *, query: bool = False) -> Address:  # noqa: N802
    """Build the address of a POST request; with `query` its parameters are in the query."""
    return Address("POST", path, query)


def PUT(path: str) -> Address:  # noqa: N802
    """Build the address of a PUT request."""
    return Address("PUT", path)


def PATCH(path: str) -> Address:  # noqa: N802
    """Build the address of a PATCH request."""
    return Address("PATCH", path)


def DELETE(path: str) -> Address:  # noqa: N802
    """Build the address of a DELETE request."""
    return Address("DELETE", path)


@dataclass(frozen=True)
class WireForm:
    """Wire form of a result or query parameter, in `Annotated[T, WireForm(...)]`: type, encoder, decoder."""

    kind: Any
    to_wire: Callable[[Any], Any]
    from_wire: Callable[[Any], Any]


class Refusal(msgspec.Struct, kw_only=True, frozen=True):
    """Error of one item of a list; the other items are not affected."""

    code: str
    detail: str

    @classmethod
    def of(cls, error: PerdureError) -> Refusal:
        """Convert an error to the refusal of an item."""
        return cls(code=error.code, detail=error.public)

    @property
    def error(self) -> PerdureError:
        """The error that this refusal was built from."""
        return error_named(self.code, self.detail) or PerdureError(self.detail)


class Ok(msgspec.Struct, kw_only=True):
    """Acknowledgement of a call that returns nothing."""

    ok: bool = True


Acknowledged = Annotated[None, WireForm(Ok, lambda _: Ok(), lambda _: None)]
"""Result of a method that returns nothing; the response is `{"ok": true}`."""


def under(name: str, kind: Any, title: str) -> WireForm:
    """Build the form of a result that is the only field of an object called `title`."""
    fields = msgspec.defstruct(title, [(name, kind)], kw_only=True)
    return WireForm(fields, lambda value: fields(**{name: value}), lambda answer: getattr(answer, name))


@dataclass(frozen=True)
class WireName:
    """Different name of a parameter in requests, used in `Annotated[T, WireName(...)]`."""

    name: str


class WholeBody:
    """Marker of a parameter that is the whole body although it is not a Struct."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method in its wire form."""

    name: str
    kind: Any
    default: Any
    form: WireForm | None = None
    wire_name: str = ""
    whole: bool = False
    """True if the parameter is the whole body."""

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class Shape:
    """Types of a method's request and response."""

    path: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    query: type[msgspec.Struct] | None
    body: Any
    whole_body: str | None
    """Parameter that is the whole body; None if there is none."""
    keyed: bool
    """True if the method takes an idempotency key."""
    answer: Any
    """Type of the answer on the wire, or None for no content."""
    answer_form: WireForm | None
    """Wire form of the answer, or of each item of a page or list."""
    paged: bool
    listed: bool
    parted: bool
    """True if the answer is a part of a list, with a cursor."""


@dataclass(frozen=True)
class Endpoint:
    """HTTP endpoint of a service method."""

    function: Callable[..., Any]
    address: Address
    scope: Scope | None
    status: int = 200
    errors: Errors = ()
    repeatable: bool = False
    """True if a request whose answer was lost may be sent again although it has no idempotency key."""
    max_body: int | None = None
    """Maximum size of the body in bytes, if it differs from the setting."""
    by_hand: bool = False
    """True if both ends are written by hand: the handler of the server and the sender of the client."""
    summary: str = field(default="")

    @cached_property
    def shape(self) -> Shape:
        """Types of query, body and answer, read from the signature on first use."""
        return read_shape(self.function, self.address)

    @property
    def effect(self) -> Literal["none", "repeatable", "once"]:
        """Effect of a request: none, the same if sent twice, or one that must happen only once."""
        if self.address.method == "GET":
            return "none"
        return "repeatable" if self.repeatable or self.shape.keyed else "once"


def call(
    address: Address,
    *,
    scope: Scope | None,
    status: int | None = None,
    errors: Errors = (),
    repeatable: bool | None = None,
    max_body: int | None = None,
    by_hand: bool = False,
) -> Callable[[F], F]:
    """Declare the endpoint of a method. The default `status` is 204 for None, otherwise 200."""

    def declare(function: F) -> F:
        nothing = inspect.signature(function).return_annotation in (None, "None")
        endpoint = Endpoint(
            function,
            address,
            scope,
            status or (204 if nothing else 200),
            errors,
            address.method == "PUT" if repeatable is None else repeatable,
            max_body,
            by_hand,
            (inspect.getdoc(function) or "").partition("\n")[0].rstrip("."),
        )
        function.endpoint = endpoint  # type: ignore[attr-defined]
        return function

    return declare


def endpoints(service: type[Any]) -> dict[str, Endpoint]:
    """Return the endpoints of a service by method name."""
    result: dict[str, Endpoint] = {}
    for kind in reversed(service.__mro__):
        result |= {name: value.endpoint for name, value in vars(kind).items() if hasattr(value, "endpoint")}
    return result


# --- signature to wire types ------------------------------------------------------------------------------


def read_shape(function: Callable[..., Any], address: Address) -> Shape:
    """Read the types of request and response from a signature."""
    hints = get_type_hints(function, include_extras=True)
    names = tuple(_PATH_PARAMETER.findall(address.path))
    parameters = []
    keyed = False
    for argument in list(inspect.signature(function).parameters.values())[1:]:
        if argument.name == KEY:
            keyed = True
        elif argument.name not in names:
            parameters.append(_parameter(argument, hints[argument.name], address))
    whole = _find_whole_body(parameters, address)
    title = "".join(map(str.title, function.__qualname__.replace(".", "_").split("_")))
    fields = (
        None if whole or not parameters else _build_struct(title, parameters, strict=not address.in_query)
    )
    answer, form, kind = _answer(hints.get("return"))
    return Shape(
        path=names,
        parameters=tuple(parameters),
        query=fields if address.in_query else None,
        body=None if address.in_query else (whole.kind if whole else fields),
        whole_body=whole.name if whole else None,
        keyed=keyed,
        answer=answer,
        answer_form=form,
        paged=kind is PaginatedResult,
        listed=kind is list,
        parted=kind is Part,
    )


def _parameter(parameter: inspect.Parameter, hint: Any, address: Address) -> Parameter:
    kind, form = _split_form(hint)
    kind, wire_name = _split_name(kind, parameter.name)
    if form is not None and address.in_query:
        default = parameter.default
        optional = form.kind | None if default is None else form.kind
        return Parameter(parameter.name, optional, default, form, wire_name)
    whole = WholeBody in (get_args(hint) if get_origin(hint) is Annotated else ())
    return Parameter(parameter.name, kind, parameter.default, None, wire_name, whole)


def _split_name(hint: Any, name: str) -> tuple[Any, str]:
    """Split the wire name off a type's annotations."""
    if get_origin(hint) is not Annotated:
        return hint, name
    kind, *marks = get_args(hint)
    wire_name = next((mark.name for mark in marks if isinstance(mark, WireName)), name)
    rest = tuple(mark for mark in marks if not isinstance(mark, WireName))
    return (Annotated[(kind, *rest)] if rest else kind), wire_name


def _split_form(hint: Any) -> tuple[Any, WireForm | None]:
    """Split the wire form off a type's annotations."""
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *marks = get_args(hint)
    form = next((mark for mark in marks if isinstance(mark, WireForm)), None)
    rest = tuple(mark for mark in marks if not isinstance(mark, WireForm) and mark is not WholeBody)
    return (Annotated[(kind, *rest)] if rest else kind), form


def _find_whole_body(parameters: Sequence[Parameter], address: Address) -> Parameter | None:
    """Return the parameter that is the whole body: a single Struct, or a single marked parameter."""
    if address.in_query or len(parameters) != 1:
        return None
    (only,) = parameters
    is_struct = isinstance(only.kind, type) and issubclass(only.kind, msgspec.Struct)
    return only if only.whole or is_struct else None


def _build_struct(title: str, parameters: Sequence[Parameter], *, strict: bool) -> type[msgspec.Struct]:
    """Build a struct of the parameters; a strict one rejects unknown fields."""
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.required:
            fields.append((parameter.wire_name, parameter.kind))
        elif isinstance(parameter.default, list | dict | set):
            default = msgspec.field(default_factory=parameter.default.copy)
            fields.append((parameter.wire_name, parameter.kind, default))
        else:
            fields.append((parameter.wire_name, parameter.kind, parameter.default))
    return msgspec.defstruct(title, fields, kw_only=True, forbid_unknown_fields=strict)


_WRAPPED: Mapping[Any, Any] = {list: ItemList, Part: Part, PaginatedResult: Page}
"""Wire types of lists and pages."""


def _answer(hint: Any) -> tuple[Any, WireForm | None, Any]:
    """Return the wire type of an answer, the wire form of the answer or its items, and the kind of list."""
    kind, form = _split_form(hint)
    if form is not None:
        return form.kind, form, None
    origin = get_origin(kind)
    if origin in _WRAPPED:
        item, form = _split_form(get_args(kind)[0])
        return _WRAPPED[origin][item if form is None else form.kind], form, origin
    return (None if kind is type(None) else kind), None, None


def collect_arguments(shape: Shape, query: Any, body: Any) -> dict[str, Any]:
    """Build the keyword arguments from a decoded request."""
    if shape.whole_body is not None:
        return {shape.whole_body: body}
    source = body if shape.query is None else query
    arguments = {parameter.name: getattr(source, parameter.wire_name) for parameter in shape.parameters}
    for parameter in shape.parameters:
        if parameter.form is not None and arguments[parameter.name] is not None:
            arguments[parameter.name] = parameter.form.from_wire(arguments[parameter.name])
    return arguments


def encode_arguments(shape: Shape, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Encode arguments for the wire; arguments that are missing or UNSET are left out."""
    sent = {}
    for parameter in shape.parameters:
        value = arguments.get(parameter.name, UNSET)
        if value is not UNSET:
            form = None if value is None else parameter.form
            sent[parameter.wire_name] = value if form is None else form.to_wire(value)
    return sent


# --- lists of ids and metadata in a query -----------------------------------------------------------------


def _write_ids(ids: Sequence[str]) -> list[str]:
    # A query cannot carry an empty list.
    return list(ids) or [""]


def _read_ids(terms: Sequence[str]) -> list[str]:
    return [term for term in terms if term]


ID_FILTER = WireForm(list[str], _write_ids, _read_ids)
"""Filter by ids; an empty list is one empty term, which matches nothing."""


def _read_terms(terms: Sequence[str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for term in terms:
        metadata.update(_object(term) if term.startswith("{") else _pair(term))
    return metadata


def _object(term: str) -> dict[str, Any]:
    value = decode_json(term)
    if not isinstance(value, dict):
        raise InvalidInput("metadata must be a JSON object, or key:text")
    return value


def _pair(term: str) -> dict[str, str]:
    key, colon, text = term.partition(":")
    if not colon or not key:
        raise InvalidInput(f"metadata {term[:64]!r} must be key:text, or a JSON object")
    return {key: text}


def _write_terms(metadata: Mapping[str, Any]) -> list[str]:
    return [encode_json(dict(metadata), what="metadata")] if metadata else []


METADATA_FILTER = WireForm(list[str], _write_terms, _read_terms)
"""Filter by metadata: in a query `key:text`, repeatable, or a JSON object."""
MetadataFilter = Annotated[Mapping[str, Any] | None, METADATA_FILTER]
