"""Memory as a tool: a model searches past events, and gets the events behind each result."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, Field, PrivateAttr

from perdure.agents.context import MemorySearch
from perdure.kernel.background import Background
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.langgraph.store import memory_of_run
from perdure.memory.records import DocumentKind, SearchHit, SearchMode, SearchResult

NAME = "search_memory"
DESCRIPTION = (
    "Search what happened before: what users asked, what agents answered and did, what tools gave, and "
    "summaries of each day. Every result names the events behind it; cite them by their ids."
)
MOST = 50
CITED = 5
"""Maximum events per result for the model; the artifact contains all of them."""


class HasMemory(Protocol):
    """An object with a memory: a `Perdure`, a `PerdureClient`, the context of a run."""

    @property
    def memory(self) -> Any: ...


class SearchMemoryInput(BaseModel):
    """The arguments of a memory search by a model."""

    query: str = Field(
        description='Words to look for, "phrases", prefix* and -excluded words.',
        min_length=1,
        max_length=1000,
    )
    agent: str | None = Field(default=None, description="Only what this agent did.")
    kind: Literal["event", "node", "grip"] | None = Field(
        default=None, description="Only events, summaries (node) or excerpts (grip)."
    )
    since: datetime | None = Field(default=None, description="Only from this time on (ISO 8601).")
    until: datetime | None = Field(default=None, description="Only up to this time (ISO 8601).")
    limit: int = Field(default=5, ge=1, le=MOST, description="How many results at most.")


class MemoryTool(BaseTool):
    """A LangChain tool that searches memory.

    Without a source it searches the memory of the run that calls it, for graphs that perdure executes.
    Elsewhere `source` is a `Perdure`, a `PerdureClient`, or an object with a method `search`, such as a
    `GrpcMemory`. The model gets a text with citations; the artifact of the message is the `SearchResult`.
    """

    name: str = NAME
    description: str = DESCRIPTION
    args_schema: type[BaseModel] = SearchMemoryInput
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: bool = True
    mode: SearchMode = "hybrid"
    _source: Any = PrivateAttr(default=None)
    _portal: Background = PrivateAttr()

    def __init__(self, source: HasMemory | MemorySearch | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._source = None if source is None else _get_memory(source)
        self._portal = Background("perdure-memory-tool")

    def _run(self, query: str, **given: Any) -> tuple[str, SearchResult]:
        if self._source is not None:
            return self._portal.wait(lambda: self._search(self._source, query, **given))
        served = memory_of_run()
        if served is None:
            raise ToolException(_NO_MEMORY)
        result: tuple[str, SearchResult] = served.wait(lambda: self._search(served.memory, query, **given))
        return result

    async def _arun(self, query: str, **given: Any) -> tuple[str, SearchResult]:
        if self._source is not None:
            return await self._search(self._source, query, **given)
        served = memory_of_run()
        if served is None:
            raise ToolException(_NO_MEMORY)
        return await self._search(served.memory, query, **given)

    async def _search(
        self,
        memory: MemorySearch,
        query: str,
        *,
        agent: str | None = None,
        kind: DocumentKind | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 5,
    ) -> tuple[str, SearchResult]:
        try:
            result: SearchResult = await memory.search(
                query,
                mode=self.mode,
                agent=agent,
                kind=kind,
                since_ms=_ms(since),
                until_ms=_ms(until),
                limit=limit,
            )
        except PerdureError as error:
            raise ToolException(f"memory could not be searched: {error.public}") from error
        return format_result(result), result


_NO_MEMORY = "there is no memory here: perdure does not execute this graph, and the tool has no source"


def format_result(result: SearchResult) -> str:
    """Format a search result for a model: each hit with its time, agent and events."""
    if not result.items:
        return "Memory has nothing about that."
    return "\n\n".join(_format_hit(number, hit) for number, hit in enumerate(result.items, 1))


def _format_hit(number: int, hit: SearchHit) -> str:
    time = datetime.fromtimestamp(hit.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = [time, hit.kind, *([f"agent {hit.agent}"] if hit.agent else [])]
    cited = ", ".join(event.event_id for event in hit.events[:CITED])
    return f"[{number}] {', '.join(about)}\n{hit.text}\nevents: {cited or 'none'}"


def _ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _get_memory(source: HasMemory | MemorySearch) -> Any:
    memory = getattr(source, "memory", source)
    if not hasattr(memory, "search"):
        raise InvalidInput(
            "the source of a MemoryTool must have a memory, as a Perdure or a PerdureClient has"
        )
    return memory
