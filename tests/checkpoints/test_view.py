"""Values are shown without reviving anything."""

from __future__ import annotations

import dataclasses
import datetime
import sys
import uuid
from collections import deque
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from perdure.checkpoints.records import GraphValue, ListSlice
from perdure.checkpoints.view import view, view_value
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput, NotSupported

SERDE = JsonPlusSerializer()


class Model(BaseModel):
    name: str
    when: datetime.date


@dataclasses.dataclass
class Data:
    model: Model
    number: int


class Color(Enum):
    RED = "red"


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"abc", "YWJj"),
        ({"a": [1, 2.5, True, None, "ü"], 5: "five"}, {"a": [1, 2.5, True, None, "ü"], "5": "five"}),
        ((1, (2, 3)), [1, [2, 3]]),
        ({1}, [1]),
        (deque(["a", "b"]), ["a", "b"]),
        (ID, str(ID)),
        (Decimal("1.50"), "1.50"),
        (datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC), "2030-01-02T00:00:00+00:00"),
        (Color.RED, "red"),
        (Data(Model(name="m", when=datetime.date(2030, 1, 2)), 3), None),
        (Send("node", {"a": 1}), ["node", {"a": 1}]),
        (_DeltaSnapshot(["x", HumanMessage("hi", id="1")]), None),
        (Interrupt(value="why?", id="i"), {"value": "why?", "id": "i", "response_schema": None}),
        ({"raw": b"\xff"}, {"raw": "/w=="}),
    ],
)
def test_a_value_is_plain_data(value: Any, expected: Any) -> None:
    seen = view(SERDE.dumps_typed(value))
    if expected is not None or value is None:
        assert seen == expected
    encode_json(seen)


def test_a_message_is_its_fields() -> None:
    message = AIMessage("hello", id="1", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c"}])
    seen = view(SERDE.dumps_typed([message]))[0]
    assert seen == message.model_dump()


def test_a_list_in_parts_is_one_list() -> None:
    parts = [ListSlice(SERDE.dumps_typed(["a", "b", "c"]), 1, 3), ListSlice(SERDE.dumps_typed(["d"]), 0, 1)]
    assert view_value(GraphValue(channel="x", version="1", parts=parts)) == ["b", "c", "d"]


def test_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = SERDE.dumps_typed({"data": Data(Model(name="m", when=datetime.date(2030, 1, 2)), 3)})
    monkeypatch.delitem(sys.modules, __name__)
    seen = view(typed)["data"]
    assert seen["number"] == 3
    assert seen["model"]["name"] == "m"
    assert __name__ not in sys.modules


@pytest.mark.parametrize("typed", [("pickle", b""), ("msgpack+aes", b"x"), ("nonsense", b"")])
def test_what_cannot_be_shown_says_so(typed: tuple[str, bytes]) -> None:
    with pytest.raises(NotSupported):
        view(typed)


@pytest.mark.parametrize(
    "typed", [("msgpack", b"\xc1"), ("msgpack", b""), ("json", b"{"), ("msgpack", b"\xc7\x05\x05x")]
)
def test_damaged_bytes_say_so(typed: tuple[str, bytes]) -> None:
    with pytest.raises(InvalidInput):
        view(typed)
