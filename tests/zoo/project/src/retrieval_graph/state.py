"""Documents with a reducer of their own: texts become documents, and `delete` empties them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AnyMessage
from langgraph.graph import add_messages


def reduce_docs(existing: Sequence[Document] | None, new: Any) -> Sequence[Document]:
    if new == "delete":
        return []
    given = [new] if isinstance(new, str) else new
    made = [_document(each) for each in given]
    return [*(existing or []), *made]


def _document(given: Any) -> Document:
    if isinstance(given, Document):
        return given
    text = given if isinstance(given, str) else given["page_content"]
    return Document(text, metadata={"id": str(uuid.uuid5(uuid.NAMESPACE_OID, text))})


@dataclass(kw_only=True)
class IndexState:
    docs: Annotated[Sequence[Document], reduce_docs]


@dataclass(kw_only=True)
class InputState:
    messages: Annotated[Sequence[AnyMessage], add_messages]


@dataclass(kw_only=True)
class State(InputState):
    queries: Annotated[list[str], lambda old, new: [*old, *new]] = field(default_factory=list)
    retrieved_docs: list[Document] = field(default_factory=list)
    kind: Literal["short", "long"] = "short"
