"""Base classes of records: closed records are msgspec Structs, open records keep unknown keys.

Both have the pydantic methods that users of Agent-lightning call.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Collection, Mapping
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, Self, cast, get_args, get_origin

import msgspec
from msgspec import convert
from msgspec.structs import asdict

from perdure.kernel.checks import build_detail, explain, parse_place
from perdure.kernel.codec import EncodedByFields, decode_json, encode_json
from perdure.kernel.errors import InvalidInput

__all__ = [
    "CheckedRecord",
    "OpenRecord",
    "Record",
    "RecordField",
    "boolean",
    "expected",
    "list_of",
    "nested",
    "one_of",
    "open_record",
    "text",
    "usual_decoder",
    "whole_number",
]

Check = Callable[[Any], Any]
Names = Collection[str] | None
_SCALARS = frozenset({str, int, float, bool, type(None)})


class PydanticApi:
    """Pydantic methods that every record has."""

    __slots__ = ()

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: Names = None,
        exclude: Names = None,
        exclude_none: bool = False,
    ) -> dict[str, Any]:
        """Return the fields as a dictionary, including nested records; `mode="json"` uses only JSON types."""
        chosen = _chosen(_get_fields(self), include, exclude)
        dumped: dict[str, Any] = _dump(_drop_none(chosen) if exclude_none else chosen, exclude_none)
        if mode == "python":
            return dumped
        return cast(dict[str, Any], decode_json(encode_json(dumped, what=type(self).__name__, nan="keep")))

    def model_dump_json(
        self,
        *,
        indent: int | None = None,
        include: Names = None,
        exclude: Names = None,
        exclude_none: bool = False,
    ) -> str:
        """Return the record as JSON text."""
        dumped = PydanticApi.model_dump(self, include=include, exclude=exclude, exclude_none=exclude_none)
        encoded = encode_json(dumped, what=type(self).__name__, nan="keep")
        if indent is None:
            return encoded
        return json.dumps(json.loads(encoded), indent=indent, ensure_ascii=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the record, then set the fields in `update` unchecked."""
        copied = copy.deepcopy(self) if deep else copy.copy(self)
        for name, value in (update or {}).items():
            try:
                setattr(copied, name, value)
            except AttributeError:
                raise InvalidInput(f"{type(self).__name__} has no field {name!r}") from None
        return copied

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Build a record from a mapping and check every field; an instance is returned unchanged."""
        if isinstance(obj, cls):
            return obj
        return cls._from_dict(obj if type(obj) is dict else _to_dict(cls, obj))

    @classmethod
    def model_validate_json(cls, data: str | bytes) -> Self:
        """Build a record from a JSON object."""
        return cls.model_validate(decode_json(data))

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Self:
        raise NotImplementedError


def _get_fields(record: Any) -> dict[str, Any]:
    if isinstance(record, EncodedByFields):
        return vars(record)
    fields = asdict(record)
    # An unset field is left out, as in msgspec's encoder.
    return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


def _chosen(fields: dict[str, Any], include: Names, exclude: Names) -> dict[str, Any]:
    if include is None and exclude is None:
        return fields
    for names in (include, exclude):
        if isinstance(names, str | Mapping):
            raise InvalidInput("include and exclude take a set of field names")
    return {
        name: value
        for name, value in fields.items()
        if (include is None or name in include) and (exclude is None or name not in exclude)
    }


def _dump(value: Any, exclude_none: bool) -> Any:
    # One frame per level, so that the deepest allowed input can be dumped.
    if isinstance(value, PydanticApi):
        value = _drop_none(_get_fields(value)) if exclude_none else _get_fields(value)
    kind = type(value)
    if kind is dict:
        fields = {}
        for key, child in value.items():
            fields[key] = child if type(child) in _SCALARS else _dump(child, exclude_none)
        return fields
    if kind is list or kind is tuple:
        children = []
        for child in value:
            children.append(child if type(child) in _SCALARS else _dump(child, exclude_none))
        return kind(children)
    return value


def _drop_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _to_dict(cls: type, obj: Any) -> dict[str, Any]:
    if not isinstance(obj, Mapping) and callable(getattr(obj, "model_dump", None)):
        obj = obj.model_dump()
    if not isinstance(obj, Mapping):
        raise InvalidInput(f"{cls.__name__} must be an object, not {type(obj).__name__}")
    return dict(obj)


class Record(PydanticApi, msgspec.Struct, kw_only=True):
    """A closed record. Its constructor takes keywords; `model_validate` checks every field."""

    _usual: ClassVar[type[msgspec.Struct] | None] = None
    """Struct of the usual wire form, which msgspec checks completely."""

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Self:
        try:
            return convert(data, cls)
        except msgspec.ValidationError as error:
            raise InvalidInput(explain(error, cls, cls.__name__)) from error


class CheckedRecord(Record, kw_only=True):
    """A closed record whose constructor also checks the type of every field."""

    def __post_init__(self) -> None:
        for name, plain, kind in _get_field_types(type(self)):
            value = getattr(self, name)
            if type(value) not in plain:
                setattr(self, name, _converted(type(self), name, value, kind))


@functools.cache
def _get_field_types(cls: type[Record]) -> tuple[tuple[str, frozenset[type], Any], ...]:
    infos = [info for info in msgspec.structs.fields(cls) if info.type is not Any]
    unchecked: frozenset[type] = frozenset({str, bool, int, type(None)})
    return tuple(
        (info.name, unchecked.intersection(get_args(info.type) or (info.type,)), info.type) for info in infos
    )


def _converted(cls: type, name: str, value: Any, kind: Any) -> Any:
    try:
        return convert(value, kind)
    except msgspec.ValidationError as error:
        text, steps = parse_place(error)
        place = ".".join(map(str, (cls.__name__, name, *steps)))
        raise InvalidInput(f"{place}: {build_detail(text, steps, kind)}") from error


class _Required:
    """Default of a required field; every check refuses it."""


_REQUIRED: Any = _Required()
_HOOKS = frozenset({"__copy__", "__deepcopy__", "__getnewargs__", "__getnewargs_ex__", "__setstate__"})


class RecordField(NamedTuple):
    """A declared field of an open record.

    A value that msgspec accepts as `kind` needs no check; without a kind every value is checked.
    """

    name: str
    kind: Any
    check: Check
    nullable: bool = False
    default: Any = _REQUIRED


class OpenRecord(PydanticApi, EncodedByFields):
    """A record that keeps unknown keys: its instance dictionary holds the declared fields first."""

    _declared: ClassVar[tuple[RecordField, ...]] = ()
    _reserved: ClassVar[frozenset[str]] = frozenset()
    _usual: ClassVar[type[msgspec.Struct] | None] = None
    """Struct of the usual wire form without other keys: msgspec decodes and checks it in one pass."""
    _plain: ClassVar[type[msgspec.Struct]]
    """Struct of the declared fields without other keys: msgspec checks it in one pass."""
    _checked: ClassVar[tuple[RecordField, ...]] = ()

    def __init_subclass__(cls) -> None:
        # A key in the instance dictionary would hide a method of the same name.
        cls._reserved = _HOOKS.union(dir(cls)).difference(field.name for field in cls._declared)
        cls._plain = _build_struct(cls.__name__, cls._declared)
        cls._checked = tuple(field for field in cls._declared if field.kind is None)

    def __init__(self, /, **fields: Any) -> None:
        try:
            data = asdict(convert(fields, self._plain))
            for name, _, check, nullable, _ in self._checked:
                value = data[name]
                if value is not None or not nullable:
                    data[name] = check(value)
        except (msgspec.ValidationError, ValueError):
            # Other forms are read field by field, which also finds the reason of an error.
            self._read(fields)
        else:
            self.__dict__ = data

    def _read(self, fields: dict[str, Any]) -> None:
        data = self.__dict__
        take = fields.pop
        try:
            for name, _, check, nullable, default in self._declared:
                value = take(name, default)
                data[name] = None if value is None and nullable else check(value)
        except ValueError as error:
            reason = " is required" if value is _REQUIRED else f": {error}"
            raise InvalidInput(f"{type(self).__name__}.{name}{reason}") from error
        if fields:
            self._keep(fields)

    def _keep(self, unknown: dict[str, Any]) -> None:
        if not self._reserved.isdisjoint(unknown):
            names = ", ".join(sorted(self._reserved.intersection(unknown)))
            raise InvalidInput(f"{type(self).__name__} cannot have a key named {names}")
        self.__dict__.update(unknown)

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Self:
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidInput(f"{cls.__name__}: {error}") from error

    @classmethod
    def _from_usual(cls, usual: Any) -> Self:
        """Build a record from its usual form, whose fields are checked."""
        return cls._of_checked(asdict(usual))

    @classmethod
    def _of_checked(cls, fields: dict[str, Any]) -> Self:
        """Build a record from all its fields, which are checked."""
        record = cls.__new__(cls)
        record.__dict__ = fields
        return record

    @property
    def model_extra(self) -> dict[str, Any]:
        """Keys that the record does not declare."""
        declared = {field.name for field in type(self)._declared}
        return {name: value for name, value in vars(self).items() if name not in declared}

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )


def _build_struct(name: str, declared: Collection[RecordField]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in declared:
        kind = Any if field.kind is None else field.kind | None if field.nullable else field.kind
        required = field.default is _REQUIRED
        fields.append((field.name, kind) if required else (field.name, kind, field.default))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, gc=False)


def expected(what: str, value: object) -> NoReturn:
    """Raise for a value of the wrong type inside a check; the record adds the name of the field."""
    raise ValueError(f"expected {what}, got {type(value).__name__}")


def text(value: Any) -> str:
    """Check a string."""
    return value if isinstance(value, str) else expected("a string", value)


def boolean(value: Any) -> bool:
    """Check a boolean."""
    return value if isinstance(value, bool) else expected("true or false", value)


def whole_number(value: Any) -> int:
    """Check a whole number of at most 64 bits."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        expected("a whole number", value)
    if not -(2**63) <= value < 2**63:
        raise ValueError("expected a whole number of at most 64 bits")
    return value


def one_of(names: tuple[str, ...]) -> Check:
    """Build a check that a value is one of the names."""

    def check(value: Any) -> Any:
        if value in names:
            return value
        raise ValueError(f"expected one of {', '.join(names)}, got {value!r}")

    return check


def nested(kind: type[OpenRecord]) -> Check:
    """Build a check of a nested record; a mapping becomes one."""
    return kind.model_validate


def list_of(kind: type[OpenRecord]) -> Check:
    """Build a check of a list of records; the result is a copy."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            expected("a list", value)
        return list(map(kind.model_validate, value)) if value else []

    return check


def open_record(kind: type, value: Any) -> Any:
    """Read open records for msgspec's decoders, as their hook."""
    if issubclass(kind, OpenRecord):
        return kind.model_validate(value)
    raise NotImplementedError


@functools.cache
def usual_decoder(kind: Any) -> Callable[[bytes], Any] | None:
    """Return a decoder of records in their usual form, also in a list or body; it refuses any other form.

    None for other types, and for records without such a form.
    """
    is_body = isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not issubclass(kind, Record)
    usual = _build_usual_body(kind) if is_body else _get_usual_form(kind)
    return None if usual is kind else msgspec.json.Decoder(usual).decode


def _get_usual_form(kind: Any) -> Any:
    """Return the usual form of a record or of a list of records; the same type if there is none."""
    if isinstance(kind, type) and issubclass(kind, OpenRecord | Record):
        return kind._usual or kind
    if get_origin(kind) not in (Annotated, list):
        return kind
    inner, *rest = get_args(kind)
    usual = _get_usual_form(inner)
    if usual is inner:
        return kind
    return Annotated[(usual, *rest)] if rest else GenericAlias(list, usual)


def _build_usual_body(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a body with the usual forms of its records; the same type if there are none."""
    fields = msgspec.structs.fields(kind)
    usual = [_get_usual_form(field.type) for field in fields]
    if all(form is field.type for form, field in zip(usual, fields, strict=True)):
        return kind
    converted: list[Any] = []
    for form, field in zip(usual, fields, strict=True):
        options: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
        converted.append((field.name, form, msgspec.field(name=field.encode_name, **options)))
    strict = kind.__struct_config__.forbid_unknown_fields
    return msgspec.defstruct(kind.__name__, converted, kw_only=True, forbid_unknown_fields=strict)
