"""The tools: methods of services, whose schema, check and scope come from their signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from inspect import Parameter, signature
from typing import Any, Final, Protocol, get_type_hints

import msgspec

from perdure.approvals.service import Approvals
from perdure.diagnostics.service import Diagnostics
from perdure.kernel.errors import Forbidden, InvalidInput, NotFound
from perdure.memory.service import Memory
from perdure.service.callers import allows
from perdure.service.endpoints import Endpoint, endpoints
from perdure.threads.service import Threads

LEFT_OUT: Final = frozenset({"self", "idempotency_key"})


class Holder(Protocol):
    """An object with the services: those of a caller in this process, or a connection to a server."""

    @property
    def memory(self) -> Memory: ...
    @property
    def threads(self) -> Any: ...
    @property
    def diagnostics(self) -> Diagnostics: ...
    @property
    def approvals(self) -> Approvals: ...


class Tool:
    """A service method that an agent may call."""

    def __init__(self, name: str, service: type[Any], holder: str, method: str) -> None:
        self.name = name
        self._holder = holder
        self._method = method
        self.endpoint: Endpoint = endpoints(service)[method]
        self.reads = self.endpoint.address.method == "GET"

    @property
    def description(self) -> str:
        """The docstring of the method."""
        lines = (self.endpoint.function.__doc__ or "").split("\n")
        return "\n".join(line.strip() for line in lines).strip()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        schema = msgspec.json.schema(_arguments(self.endpoint.function))
        parts = schema.pop("$defs")
        main: dict[str, Any] = parts.pop(schema["$ref"].rpartition("/")[2])
        main.pop("title", None)
        return {**main, "$defs": parts} if parts else main

    async def call(self, holder: Holder, arguments: Mapping[str, Any]) -> Any:
        """Call the method with checked arguments."""
        kind = _arguments(self.endpoint.function)
        try:
            given = msgspec.convert(dict(arguments), kind)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"{self.name}: {error}") from None
        values = {name: getattr(given, name) for name in arguments}
        method: Callable[..., Any] = getattr(getattr(holder, self._holder), self._method)
        return await method(**values)


@cache
def _arguments(function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Build a struct from the parameters of a method."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for name, parameter in signature(function).parameters.items():
        if name not in LEFT_OUT:
            required = parameter.default is Parameter.empty
            fields.append((name, hints[name]) if required else (name, hints[name], parameter.default))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


TOOLS: Final[Mapping[str, Tool]] = {
    name: Tool(name, service, holder, method)
    for name, service, holder, method in (
        ("memory_search", Memory, "memory", "search"),
        ("memory_contents", Memory, "memory", "toc_root"),
        ("memory_browse", Memory, "memory", "browse"),
        ("memory_show", Memory, "memory", "get_node"),
        ("memory_expand", Memory, "memory", "expand_grip"),
        ("memory_events", Memory, "memory", "get_events"),
        ("why", Diagnostics, "diagnostics", "why"),
        ("list_runs", Threads, "threads", "list_runs"),
        ("get_run", Threads, "threads", "get_run"),
        ("list_approvals", Approvals, "approvals", "list"),
        ("get_approval", Approvals, "approvals", "get"),
        ("approve", Approvals, "approvals", "approve"),
        ("reject", Approvals, "approvals", "reject"),
        ("reply", Approvals, "approvals", "reply"),
    )
}


def tools_for(scopes: frozenset[str] | None) -> list[Tool]:
    """Return the tools that these scopes allow; None allows all, because another server decides."""
    return [tool for tool in TOOLS.values() if scopes is None or allows(scopes, tool.endpoint.scope)]


def tool_named(name: str, scopes: frozenset[str] | None) -> Tool:
    """Return a tool by name. Raise NotFound or Forbidden if it is not available to the caller."""
    tool = TOOLS.get(name)
    if tool is None:
        raise NotFound(f"there is no tool {name[:64]!r}")
    if scopes is not None and not allows(scopes, tool.endpoint.scope):
        raise Forbidden(f"the tool {name} needs a token with the scope {tool.endpoint.scope!r}")
    return tool
