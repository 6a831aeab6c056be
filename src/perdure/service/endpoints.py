"""How methods of services are reached over HTTP.

`@call` writes an `Endpoint` on a method of a service and returns the same function. The native routes, the
OpenAPI document, the scopes, the idempotency keys and the Python client are derived from it, so that a method
is written once. See `Service` in `perdure.service.base`.
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
from perdure.kernel.pages import ListPart, Page, PaginatedResult, Part
from perdure.service.callers import Scope

PREFIX = "/api/v1"
"""The path under which the native API stands."""
MAX_BATCH = 1000
"""How many items one request may carry."""
KEY = "idempotency_key"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Errors = tuple[type[PerdureError], ...]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


class ItemList(msgspec.Struct, Generic[T], kw_only=True):
    """A list that is given whole."""

    items: list[T]


class Address(NamedTuple):
    """Where a method is reached."""

    method: Method
    path: str
    query: bool = False
    """Whether parameters travel in the query although the method has a body."""

    @property
    def in_query(self) -> bool:
        """Whether its parameters travel in the query and not in a body."""
        return self.query or self.method in ("GET", "DELETE")


def GET(path: str) -> Address:  # noqa: N802 - it is the name of the HTTP method
    """An address that is read."""
    return Address("GET", path)


def POST(path: str, *, query: bool = False) -> Address:  # noqa: N802
    """An address that something is sent to; with `query` its parameters travel in the query."""
    return Address("POST", path, query)


def PUT(path: str) -> Address:  # noqa: N802
    """An address whose content is replaced."""
    return Address("PUT", path)


def PATCH(path: str) -> Address:  # noqa: N802
    """An address whose content is changed in part."""
    return Address("PATCH", path)


def DELETE(path: str) -> Address:  # noqa: N802
    """An address whose content is deleted."""
    return Address("DELETE", path)


@dataclass(frozen=True)
class WireForm:
    """How a value travels if not as itself: as `kind`, made by `to_wire` and read back by `from_wire`.

    It stands in `Annotated[T, WireForm(...)]` of a parameter (which counts in a query only) or of a result.
    """

    kind: Any
    to_wire: Callable[[Any], Any]
    from_wire: Callable[[Any], Any]


class Refusal(msgspec.Struct, kw_only=True, frozen=True):
    """Why one item of a list was refused; its neighbours were not."""

    code: str
    detail: str

    @classmethod
    def of(cls, error: PerdureError) -> Refusal:
        """The refusal of an item that was answered with an error."""
        return cls(code=error.code, detail=error.public)

    @property
    def error(self) -> PerdureError:
        """The error that it was made of."""
        return error_named(self.code, self.detail) or PerdureError(self.detail)


class Ok(msgspec.Struct, kw_only=True):
    """Whether something was done."""

    ok: bool = True


Acknowledged = Annotated[None, WireForm(Ok, lambda _: Ok(), lambda _: None)]
"""The result of a method that returns nothing and is answered with `{"ok": true}`."""


def under(name: str, kind: Any, title: str) -> WireForm:
    """The form of a result that travels as the one field of an object called `title`."""
    fields = msgspec.defstruct(title, [(name, kind)], kw_only=True)
    return WireForm(fields, lambda value: fields(**{name: value}), lambda found: getattr(found, name))


@dataclass(frozen=True)
class WireName:
    """Another name of a parameter in requests, in `Annotated[T, WireName(...)]`."""

    name: str


class WholeBody:
    """Marks the one parameter that is the whole body although it is no Struct."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method, as it travels."""

    name: str
    kind: Any
    default: Any
    form: WireForm | None = None
    wire_name: str = ""
    whole: bool = False
    """Whether it is the whole body."""

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class Shape:
    """What a request to a method holds, and what comes back."""

    path: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    query: type[msgspec.Struct] | None
    body: Any
    whole_body: str | None
    """The parameter that is the whole body, where one is."""
    keyed: bool
    """Whether the method takes an idempotency key."""
    answer: Any
    """The type of the answer on the wire, or None for no content."""
    answer_form: WireForm | None
    """How the answer travels, or each item of a page or list."""
    paged: bool
    listed: bool
    parted: bool
    """Whether the answer is a part of a list, with a cursor."""


@dataclass(frozen=True)
class Endpoint:
    """How a method of a service is reached."""

    function: Callable[..., Any]
    address: Address
    scope: Scope | None
    status: int = 200
    errors: Errors = ()
    repeatable: bool = False
    """Whether a request whose answer was lost may be sent again although it has no idempotency key."""
    max_body: int | None = None
    """Another bound than the settings' for the body, in bytes."""
    by_hand: bool = False
    """Whether both ends are written by hand: a handler on the server, a sender in the client."""
    summary: str = field(default="")

    @cached_property
    def shape(self) -> Shape:
        """Types of query, body and answer, made from the signature when first needed."""
        return read_shape(self.function, self.address)

    @property
    def effect(self) -> Literal["none", "repeatable", "once"]:
        """What a request does: nothing, the same when sent twice, or something that must happen once."""
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
    """Declare how a method is reached. Without a `status` it is 204 for None and 200 for anything else."""

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
    """The endpoints of a service by the names of their methods."""
    found: dict[str, Endpoint] = {}
    for kind in reversed(service.__mro__):
        found |= {name: value.endpoint for name, value in vars(kind).items() if hasattr(value, "endpoint")}
    return found


# --- from a signature to what travels ---------------------------------------------------------------------


def read_shape(function: Callable[..., Any], address: Address) -> Shape:
    """Read off a signature what a request holds and what comes back."""
    hints = get_type_hints(function, include_extras=True)
    names = tuple(_PATH_PARAMETER.findall(address.path))
    parameters = []
    keyed = False
    for each in list(inspect.signature(function).parameters.values())[1:]:
        if each.name == KEY:
            keyed = True
        elif each.name not in names:
            parameters.append(_parameter(each, hints[each.name], address))
    whole = _whole_body(parameters, address)
    title = "".join(map(str.title, function.__qualname__.replace(".", "_").split("_")))
    fields = None if whole or not parameters else _fields(title, parameters, strict=not address.in_query)
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
        parted=kind is ListPart,
    )


def _parameter(parameter: inspect.Parameter, hint: Any, address: Address) -> Parameter:
    kind, form = _without_form(hint)
    kind, wire_name = _without_name(kind, parameter.name)
    if form is not None and address.in_query:
        default = parameter.default
        optional = form.kind | None if default is None else form.kind
        return Parameter(parameter.name, optional, default, form, wire_name)
    whole = WholeBody in (get_args(hint) if get_origin(hint) is Annotated else ())
    return Parameter(parameter.name, kind, parameter.default, None, wire_name, whole)


def _without_name(hint: Any, name: str) -> tuple[Any, str]:
    """A type without the wire name in its annotations."""
    if get_origin(hint) is not Annotated:
        return hint, name
    kind, *marks = get_args(hint)
    found = next((mark.name for mark in marks if isinstance(mark, WireName)), name)
    rest = tuple(mark for mark in marks if not isinstance(mark, WireName))
    return (Annotated[(kind, *rest)] if rest else kind), found


def _without_form(hint: Any) -> tuple[Any, WireForm | None]:
    """A type without the wire form in its annotations."""
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *marks = get_args(hint)
    form = next((mark for mark in marks if isinstance(mark, WireForm)), None)
    rest = tuple(mark for mark in marks if not isinstance(mark, WireForm) and mark is not WholeBody)
    return (Annotated[(kind, *rest)] if rest else kind), form


def _whole_body(parameters: Sequence[Parameter], address: Address) -> Parameter | None:
    """A single Struct is the whole body, and so is a single parameter that is marked."""
    if address.in_query or len(parameters) != 1:
        return None
    (only,) = parameters
    is_struct = isinstance(only.kind, type) and issubclass(only.kind, msgspec.Struct)
    return only if only.whole or is_struct else None


def _fields(title: str, parameters: Sequence[Parameter], *, strict: bool) -> type[msgspec.Struct]:
    """A struct of the parameters; in a body an unknown field is refused."""
    fields: list[Any] = []
    for each in parameters:
        if each.required:
            fields.append((each.wire_name, each.kind))
        elif isinstance(each.default, list | dict | set):
            fields.append((each.wire_name, each.kind, msgspec.field(default_factory=each.default.copy)))
        else:
            fields.append((each.wire_name, each.kind, each.default))
    return msgspec.defstruct(title, fields, kw_only=True, forbid_unknown_fields=strict)


_WRAPPED: Mapping[Any, Any] = {list: ItemList, ListPart: Part, PaginatedResult: Page}
"""What lists and pages travel in."""


def _answer(hint: Any) -> tuple[Any, WireForm | None, Any]:
    """The type of an answer on the wire, its form or that of each item, and what kind of list it is."""
    kind, form = _without_form(hint)
    if form is not None:
        return form.kind, form, None
    origin = get_origin(kind)
    if origin in _WRAPPED:
        item, form = _without_form(get_args(kind)[0])
        return _WRAPPED[origin][item if form is None else form.kind], form, origin
    return (None if kind is type(None) else kind), None, None


def collect_arguments(shape: Shape, query: Any, body: Any) -> dict[str, Any]:
    """The keyword arguments that a decoded request holds."""
    if shape.whole_body is not None:
        return {shape.whole_body: body}
    source = body if shape.query is None else query
    found = {each.name: getattr(source, each.wire_name) for each in shape.parameters}
    for each in shape.parameters:
        if each.form is not None and found[each.name] is not None:
            found[each.name] = each.form.from_wire(found[each.name])
    return found


def encode_arguments(shape: Shape, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they travel; what was not given, or is UNSET, is left out."""
    sent = {}
    for each in shape.parameters:
        value = arguments.get(each.name, UNSET)
        if value is not UNSET:
            sent[each.wire_name] = each.form.to_wire(value) if each.form and value is not None else value
    return sent


# --- lists of ids and metadata in a query -----------------------------------------------------------------


def _write_ids(ids: Sequence[str]) -> list[str]:
    # A query knows no empty list.
    return list(ids) or [""]


def _read_ids(terms: Sequence[str]) -> list[str]:
    return [term for term in terms if term]


ID_FILTER = WireForm(list[str], _write_ids, _read_ids)
"""Ids to search for; none is one empty term, which finds nothing."""


def _read_terms(terms: Sequence[str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for term in terms:
        metadata.update(_object(term) if term.startswith("{") else _pair(term))
    return metadata


def _object(term: str) -> dict[str, Any]:
    found = decode_json(term)
    if not isinstance(found, dict):
        raise InvalidInput("metadata must be a JSON object, or key:text")
    return found


def _pair(term: str) -> dict[str, str]:
    key, colon, text = term.partition(":")
    if not colon or not key:
        raise InvalidInput(f"metadata {term[:64]!r} must be key:text, or a JSON object")
    return {key: text}


def _write_terms(metadata: Mapping[str, Any]) -> list[str]:
    return [encode_json(dict(metadata), what="metadata")] if metadata else []


METADATA_FILTER = WireForm(list[str], _write_terms, _read_terms)
"""Metadata to search for: in a query `key:text`, as often as needed, or a JSON object."""
MetadataFilter = Annotated[Mapping[str, Any] | None, METADATA_FILTER]
