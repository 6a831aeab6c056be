"""Stored JSON: what survives, what is refused, and that no value changes silently."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import uuid
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.checks import check_text
from perdure.kernel.codec import MAX_DEPTH, decode_json, encode_json, encode_scalars
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import OpenRecord, Record

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


class Colour(enum.Enum):
    RED = "red"
    BLOB = b"blob"


class Level(enum.IntEnum):
    HIGH = 3


class Tone(enum.StrEnum):
    LOW = "low"


class Point(msgspec.Struct):
    x: float
    y: Any = None


class Closed(Record, kw_only=True):
    value: Any


class Open(OpenRecord):
    pass


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Model:
    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self) -> dict[str, Any]:
        return self.fields


class Name(str):
    __slots__ = ()


class Ratio(float):
    __slots__ = ()


class Count(int):
    pass


def nest(depth: int, leaf: Any = None, *, as_dict: bool = False) -> Any:
    value = leaf
    for _ in range(depth):
        value = {"k": value} if as_dict else [value]
    return value


def round_trip(value: Any, **options: Any) -> Any:
    return decode_json(encode_json(value, **options))


@given(JSON)
def test_json_values_come_back_as_they_were(value: Any) -> None:
    assert round_trip(value) == value
    assert round_trip({"in": [value]}, nan="keep") == {"in": [value]}


@given(st.lists(st.binary() | st.text(), max_size=4), st.binary(max_size=300))
def test_bytes_are_always_found(around: list[Any], blob: bytes) -> None:
    for value in (blob, [*around, blob], {"a": {"b": blob}}, {blob: 1}, Open(x=blob), Closed(value=(blob,))):
        with pytest.raises(InvalidInput, match="bytes are not JSON"):
            encode_json(value)


@given(st.lists(st.floats() | st.text() | st.none(), max_size=6))
def test_non_finite_numbers_are_always_found(values: list[Any]) -> None:
    bad = any(isinstance(value, float) and not math.isfinite(value) for value in values)
    if bad:
        with pytest.raises(InvalidInput, match="NaN and Infinity"):
            encode_json(values)
    else:
        assert round_trip(values) == values
    assert repr(round_trip(values, nan="keep")) == repr(values)


@given(st.text(st.characters(codec=None, categories=None), max_size=8))
def test_any_text_can_be_stored(text: str) -> None:
    stored = encode_json({"t": text})
    assert decode_json(stored)["t"] == text.encode("utf-16-le", "surrogatepass").decode(
        "utf-16-le", "replace"
    )
    stored.encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, '"red"'),
        (Level.HIGH, "3"),
        (Tone.LOW, '"low"'),
        ({Tone.LOW: 1}, '{"low":1}'),
        (Point(1.5, [None]), '{"x":1.5,"y":[null]}'),
        (Closed(value=Open(a=1)), '{"value":{"a":1}}'),
        (Open(a=Open(b=[Open()])), '{"a":{"b":[{}]}}'),
        (Pair(1, Pair(None, "x")), '{"left":1,"right":{"left":null,"right":"x"}}'),
        (Model(a=Model(b=2)), '{"a":{"b":2}}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        ((1, (2,)), "[1,[2]]"),
        ({7}, "[7]"),
        (frozenset(), "[]"),
        ({1: 2}, '{"1":2}'),
        (Name("n"), '"n"'),
        (Ratio(0.5), "0.5"),
        (Count(5), "5"),
        (decimal.Decimal("1.50"), '"1.50"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), '"2026-01-02T03:04:05Z"'),
        ("a\0b", '"a\\u0000b"'),
        (2**64, "18446744073709551616"),
        (-(2**100), "-1267650600228229401496703205376"),
        ([196, 197, 198, 127, -1], "[196,197,198,127,-1]"),
        ("Ąąńż" * 3, '"ĄąńżĄąńżĄąńż"'),
        (None, "null"),
    ],
)
def test_what_is_accepted_is_written_plainly(value: Any, text: str) -> None:
    assert encode_json(value) == text
    assert encode_json(value, nan="keep") == text


@pytest.mark.parametrize(
    "value", [object(), {"a": object()}, [print], {None: 1}, {(1, 2): 3}, [10**5000], 3j, Model]
)
def test_what_json_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^the input cannot be stored as JSON"):
        encode_json(value, what="the input")


@pytest.mark.parametrize(
    "value",
    [b"", bytearray(b"x"), memoryview(b"x"), Colour.BLOB, {"a": (b"x",)}, Point(1, b"x"), Pair(1, b"x")],
)
def test_bytes_are_refused_everywhere(value: Any) -> None:
    with pytest.raises(InvalidInput, match="the input cannot be stored as JSON: bytes are not JSON"):
        encode_json(value, what="the input")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, Ratio("nan")])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda bad: bad,
        lambda bad: [None, {"a": bad}],
        lambda bad: Point(bad, 2),
        lambda bad: Pair(1, {"x": (bad,)}),
        lambda bad: Open(a=bad),
        lambda bad: Closed(value=[Open(a=bad)]),
        lambda bad: Model(a=bad),
        lambda bad: {bad, "x"},
        lambda bad: ["\ud800", bad],
        lambda bad: [2**70, bad],
    ],
)
def test_nan_and_infinity_are_refused_or_kept(bad: float, wrap: Any) -> None:
    value = wrap(bad)
    with pytest.raises(InvalidInput, match="cell cannot be stored as JSON: NaN and Infinity"):
        encode_json(value, what="cell")
    kept = encode_json(value, nan="keep")
    assert ("NaN" if math.isnan(bad) else "Infinity") in kept
    assert encode_json(decode_json(kept), nan="keep") == kept


def test_nan_with_any_payload_is_found() -> None:
    odd = msgspec.msgpack.decode(b"\xcb\xff\xf4\x00\x00\x00\x00\x00\x01")
    assert math.isnan(odd)
    with pytest.raises(InvalidInput):
        encode_json([odd])


def test_a_null_is_not_taken_for_nan() -> None:
    assert round_trip({"a": None, "b": "null", "c": 1e308, "d": -1.7e308}) == {
        "a": None,
        "b": "null",
        "c": 1e308,
        "d": -1.7e308,
    }


@pytest.mark.parametrize(
    ("value", "quick"),
    [
        ("null", True),
        (0.5, True),
        ([1, 2.5, "x", True], True),
        ([], True),
        (None, False),
        (math.nan, False),
        (math.inf, False),
        ([1, math.nan], False),
        (["x", -math.inf], False),
        ([None], False),
        ([[1]], False),
        (b"x", False),
        (["\ud800"], False),
    ],
)
def test_only_scalars_are_encoded_quickly(value: Any, quick: bool) -> None:
    scalars = {"a": 1, "value": value}
    encoded = encode_scalars({"scalars": scalars}, scalars)
    assert (encoded is not None) == quick
    if encoded is not None:
        assert encoded.decode() == encode_json({"scalars": scalars})


def test_lone_surrogates_become_replacement_characters_in_keys_and_values() -> None:
    value = {"\ud800": ["x\udfff", {"k": Open(b="\ud800a")}], "fine": "\U0001f600", "pair": "\ud83d\ude00"}
    assert round_trip(value) == {
        "\ufffd": ["x\ufffd", {"k": {"b": "\ufffda"}}],
        "fine": "\U0001f600",
        "pair": "\U0001f600",
    }
    assert round_trip("\ud800") == "\ufffd"


def test_keys_that_would_fall_together_are_refused() -> None:
    with pytest.raises(InvalidInput, match="differ only in lone surrogates"):
        encode_json(dict.fromkeys(["\ud800", "\ud801"]))


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("leaf", [1, "\ud800", math.nan])
def test_depth_is_limited_exactly(as_dict: bool, leaf: Any) -> None:
    round_trip(nest(MAX_DEPTH, leaf, as_dict=as_dict), nan="keep")
    with pytest.raises(InvalidInput, match="deep is nested deeper than 500 levels"):
        encode_json(nest(MAX_DEPTH + 1, leaf, as_dict=as_dict), what="deep", nan="keep")


def test_a_wide_value_is_not_taken_for_a_deep_one() -> None:
    wide = [{"role": "user", "parts": [[i]]} for i in range(2000)]
    assert round_trip(wide) == wide


def test_endless_values_are_refused() -> None:
    circle: list[Any] = []
    circle.append({"again": circle})
    model = Model()
    model.fields["me"] = model
    for value in (circle, model, nest(100_000)):
        with pytest.raises(InvalidInput, match="knot is nested deeper than 500 levels or contains itself"):
            encode_json(value, what="knot")


def test_decoding() -> None:
    assert decode_json(None) is None
    assert decode_json(b'{"a":1}') == {"a": 1}
    assert decode_json('"\\ud800"') == "\ud800"
    assert decode_json("[-Infinity]") == [-math.inf]


@pytest.mark.parametrize("text", ["", "{", "nope", b"\xff\xfe\xff", "[1,]", "[" * 100_000, "\ud800"])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_json(text)


@pytest.mark.parametrize("text", ["", "ro-1", "é" * 512, "x" * 1024, Name("sub")])
def test_text_that_fits_is_given_back(text: str) -> None:
    assert check_text(text, "rollout_id") is text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "rollout_id must be a string, not NoneType"),
        (5, "must be a string, not int"),
        (b"x", "must be a string, not bytes"),
        ("a\0", "must not contain NUL"),
        ("\ud800", "must not contain lone surrogates"),
        ("x" * 1025, "at most 1024 bytes"),
        ("é" * 513, "at most 1024 bytes"),
    ],
)
def test_other_text_is_refused_by_name(value: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_text(value, "rollout_id")


def test_the_length_of_text_can_be_chosen() -> None:
    assert check_text("x" * 2000, "name", max_length=2000)
    with pytest.raises(InvalidInput, match="at most 3 bytes"):
        check_text("xxxx", "name", max_length=3)
