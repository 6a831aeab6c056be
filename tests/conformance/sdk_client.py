"""The suites and the runners of the SDKs, unmodified, on sessions of our server. Run in their environment."""

import sys
from typing import Any
from uuid import uuid4

from claude_agent_sdk import get_session_messages_from_store, list_sessions_from_store
from claude_agent_sdk.testing import run_session_store_conformance
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from tests.conformance.checks import Check, CheckedServer, run_checks

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Session, Usage, set_tracing_disabled
from perdure.client.native import PerdureClient
from perdure.integrations.claude_agent import PerdureSessionStore
from perdure.integrations.openai_agents import PerdureSession


async def the_suite_of_the_claude_agent_sdk(server: CheckedServer) -> None:
    """All contracts but those of delete, which an append-only log does not have."""
    clients: list[PerdureClient] = []

    async def store() -> PerdureSessionStore:
        clients.append(await server.connect().__aenter__())
        return PerdureSessionStore(clients[-1].sessions)

    try:
        await run_session_store_conformance(store)
    finally:
        for client in clients:
            await client.close()


async def the_readers_of_the_claude_agent_sdk(server: CheckedServer) -> None:
    """A transcript that is mirrored twice is listed and read once, by another store."""
    from claude_agent_sdk import project_key_for_directory

    key: Any = {"project_key": project_key_for_directory("/srv/shop"), "session_id": str(uuid4())}
    entries: Any = [
        _entry(key, None, "user", "Where is Rome?", "2026-01-01T00:00:00.000Z"),
    ]
    entries.append(_entry(key, entries[0]["uuid"], "assistant", "In Italy.", "2026-01-01T00:00:01.000Z"))
    async with server.connect() as client:
        store: Any = PerdureSessionStore(client.sessions)
        await store.append(key, entries)
        await store.append(key, entries)
        other: Any = PerdureSessionStore(client.sessions)
        (listed,) = await list_sessions_from_store(other, directory="/srv/shop")
        assert (listed.session_id, listed.first_prompt) == (key["session_id"], "Where is Rome?"), listed
        messages = await get_session_messages_from_store(other, key["session_id"], directory="/srv/shop")
        assert [each.type for each in messages] == ["user", "assistant"], messages
        shown = await client.sessions.messages(key["session_id"])
        assert [each.text for each in shown.items] == ["Where is Rome?", "In Italy."], shown


def _entry(key: Any, parent: str | None, role: str, text: str, time: str) -> dict[str, Any]:
    return {
        "type": role,
        "uuid": str(uuid4()),
        "parentUuid": parent,
        "sessionId": key["session_id"],
        "timestamp": time,
        "cwd": "/srv/shop",
        "isSidechain": False,
        "message": {"role": role, "content": [{"type": "text", "text": text}]},
    }


class Echo(Model):  # type: ignore[misc]
    """A model that says how many items it was given."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        given = kwargs.get("input", args[1] if len(args) > 1 else ())
        text = ResponseOutputText(annotations=[], text=f"{len(given)} items", type="output_text")
        said = ResponseOutputMessage(
            id=uuid4().hex, content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


async def the_runner_of_the_openai_agents_sdk(server: CheckedServer) -> None:
    """Two runs on one session are one conversation; items are popped and cleared."""
    set_tracing_disabled(True)
    agent = Agent(name="echo", model=Echo())
    config = RunConfig(tracing_disabled=True)
    async with server.connect() as client:
        session: Any = PerdureSession("talk", client.sessions)
        assert isinstance(session, Session)
        first = await Runner.run(agent, "one", session=session, run_config=config)
        assert first.final_output == "1 items", first.final_output
        again: Any = PerdureSession("talk", client.sessions)
        second = await Runner.run(agent, "two", session=again, run_config=config)
        assert second.final_output == "3 items", second.final_output
        items = await session.get_items()
        assert [each["role"] for each in items] == ["user", "assistant", "user", "assistant"], items
        assert await session.get_items(limit=1) == items[-1:]
        assert await again.pop_item() == items[-1]
        assert await session.get_items() == items[:-1]
        await session.clear_session()
        assert await again.get_items() == []
        assert await again.pop_item() is None
        await again.add_items([{"role": "user", "content": "anew"}])
        assert await session.get_items() == [{"role": "user", "content": "anew"}]
        shown = await client.sessions.messages("talk")
        assert [each.role for each in shown.items][:2] == ["user", "assistant"], shown


CHECKS: tuple[Check, ...] = (
    the_suite_of_the_claude_agent_sdk,
    the_readers_of_the_claude_agent_sdk,
    the_runner_of_the_openai_agents_sdk,
)


if __name__ == "__main__":
    run_checks(sys.argv[1:], CHECKS)
