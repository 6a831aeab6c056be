"""States with every kind of value, and what is left of their classes after an interrupt."""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import pandas
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict


class Color(Enum):
    RED = "red"


class Level(StrEnum):
    HIGH = "high"


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Box(BaseModel):
    corner: tuple[int, int]
    color: Color


class Pair(NamedTuple):
    first: int
    second: str


class Values(TypedDict, total=False):
    """Some are declared, and some are not."""

    point: Point
    box: Box
    anything: Any
    plain: dict  # type: ignore[type-arg]
    listed: list  # type: ignore[type-arg]
    documents: list[Document]
    messages: Annotated[list[AnyMessage], add_messages]
    moment: datetime
    day: date
    hour: time
    duration: timedelta
    price: Decimal
    key: UUID
    raw: bytes
    tags: set[str]
    classes: Annotated[list[Any], operator.add]


def fill(state: Values) -> Values:
    return {
        "point": Point(1, 2),
        "box": Box(corner=(0, 1), color=Color.RED),
        "anything": [Point(3, 4), Color.RED, Level.HIGH, Pair(1, "b")],
        "plain": {"box": Box(corner=(2, 3), color=Color.RED), "deep": {"point": Point(5, 6)}},
        "listed": [Pair(2, "c"), {Color.RED}, deque([Point(7, 8)])],
        "documents": [Document("text", metadata={"page": 1})],
        "messages": [HumanMessage("hello", id="h"), AIMessage("hi", id="a")],
        "moment": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "hour": time(3, 4),
        "duration": timedelta(minutes=1),
        "price": Decimal("1.50"),
        "key": UUID(int=1),
        "raw": b"\x00\xff",
        "tags": {"one"},
    }


def classes_of(value: Any) -> Any:
    """The names of classes, in the shape of the value."""
    if type(value) is dict:
        return {key: classes_of(each) for key, each in value.items()}
    if type(value) in (list, tuple, set, deque):
        return [type(value).__name__, *map(classes_of, value)]
    return type(value).__name__


def report(state: Values) -> Values:
    interrupt("go on?")
    return {"classes": [classes_of({key: state[key] for key in state if key != "classes"})]}  # type: ignore[literal-required]


def chain(schema: Any, *nodes: Any) -> Any:
    """A graph whose nodes come one after the other."""
    builder: Any = StateGraph(schema)
    names = [node.__name__ for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for one, other in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(one, other)
    return builder.compile()


values = chain(Values, fill, report)


# --- what cannot be stored, and what callers send ----------------------------------------------------------


def lock(state: Values) -> Values:
    return {"anything": {"lock": threading.Lock()}}


unstorable = chain(Values, lock)


def echo(state: Values) -> Values:
    interrupt("go on?")
    return {"classes": [classes_of(state["anything"])]}


echoing = chain(Values, echo)


# --- DataFrames -------------------------------------------------------------------------------------------


def measure(state: Values) -> Values:
    frame = pandas.DataFrame({"name": ["a", "b"], "size": [1.5, None], "on": [date(2026, 1, 1), None]})
    return {"anything": frame.set_index("name"), "listed": [{"frame": frame}], "point": Point(1, 2)}


def total(state: Values) -> Values:
    interrupt("go on?")
    inner = state["listed"][0]["frame"]
    return {"classes": [classes_of(state["anything"]), list(inner.columns), float(inner["size"].sum())]}


frames = chain(Values, measure, total)


def hide(state: Values) -> Values:
    return {"anything": pandas.DataFrame({"lock": [threading.Lock()]})}


unstorable_frame = chain(Values, hide)
