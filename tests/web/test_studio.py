"""Threads, chats with assistants, and their graphs in a real browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from playwright.async_api import Browser, Page, expect
from tests.web.world import HOSTILE, TIMEOUT, Screen, World, opened, shows_well

from perdure import Agents
from perdure.runtime.components import EmbeddedWorker
from perdure.runtime.services import Services

pytestmark = pytest.mark.asyncio(loop_scope="package")


@dataclass
class Manners:
    """How the concierge talks."""

    tone: Literal["plain", "kind"] = "plain"
    nights: int = 1


@dataclass
class Sum:
    """What the calculator adds."""

    left: int
    right: int


class Studio(NamedTuple):
    """What the agents of the tests wait for, and the services of the server."""

    gate: asyncio.Event
    services: Services


def graph_with(gate: asyncio.Event) -> Any:
    """A graph that looks, asks a person, and answers."""

    async def look(state: MessagesState) -> dict[str, Any]:
        await gate.wait()
        call = {"name": "find_room", "args": {"guest": HOSTILE[1]}, "id": "call-1"}
        return {
            "messages": [
                AIMessage(HOSTILE[0], tool_calls=[call]),
                ToolMessage("Room 7", tool_call_id="call-1"),
            ]
        }

    def agree(state: MessagesState, runtime: Runtime[Manners]) -> dict[str, Any]:
        answer = interrupt({"question": f"Book it? {HOSTILE[3]}"})
        nights, tone = runtime.context.nights, runtime.context.tone
        return {"messages": [AIMessage(f"Booked {nights} nights, {tone}: {answer}")]}

    graph = StateGraph(MessagesState, context_schema=Manners)
    graph.add_node("look", look)
    graph.add_node("agree", agree)
    graph.add_edge(START, "look")
    graph.add_edge("look", "agree")
    graph.add_edge("agree", END)
    return graph.compile()


async def add(ctx: Any, input: Sum) -> dict[str, int]:
    return {"sum": input.left + input.right}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def studio(world: World) -> AsyncIterator[Studio]:
    gate = asyncio.Event()
    gate.set()
    agents = Agents()
    agents.register("concierge", graph_with(gate), description="Books a room, once a person agrees")
    agents.register("calculator", add)
    app: Any = world.visitor.app
    worker = EmbeddedWorker(app, agents)
    await worker.start()
    try:
        yield Studio(gate, app.services)
    finally:
        await worker.stop()


async def choose(page: Page, label: str, option: str) -> None:
    await page.get_by_role("combobox", name=label).click()
    await page.get_by_role("option", name=option, exact=True).click()


async def begin(screen: Screen, text: str) -> str:
    """Begin a chat with the concierge; the id of its thread."""
    await screen.open("/chat")
    await choose(screen.page, "Assistant", "concierge")
    await screen.page.get_by_role("textbox", name="Message").fill(text)
    await screen.page.keyboard.press("Enter")
    await screen.page.wait_for_url(re.compile("/threads/"))
    return screen.page.url.rpartition("/")[2].partition("?")[0]


async def asked(screen: Screen) -> None:
    await expect(screen.page.get_by_role("form", name="Answer")).to_be_visible(timeout=TIMEOUT)


async def answer(screen: Screen, text: str) -> None:
    await asked(screen)
    await screen.page.get_by_role("form", name="Answer").get_by_role("textbox").fill(text)
    await screen.press("Answer")


async def has_status(screen: Screen, status: str) -> None:
    await expect(screen.page.locator(".head [data-status]")).to_have_text(status, timeout=TIMEOUT)


async def test_a_chat_is_configured_followed_and_answered(
    browser: Browser, world: World, studio: Studio
) -> None:
    studio.gate.clear()
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        await screen.open("/chat")
        await choose(page, "Assistant", "concierge")
        await screen.press("Configure")
        await choose(page, "Tone", "kind")
        await page.get_by_label("Nights").fill("3")
        await page.get_by_role("textbox", name="Message").fill(HOSTILE[2])
        await screen.press("Send")
        lit = page.locator("[data-node=look][data-state=running]")
        await expect(lit).to_be_visible(timeout=TIMEOUT)
        await has_status(screen, "busy")
        studio.gate.set()
        await asked(screen)
        await expect(page.locator("[data-node=agree][data-state=interrupted]")).to_be_visible(timeout=TIMEOUT)
        for text in (HOSTILE[0], HOSTILE[2], f"Book it? {HOSTILE[3]}"):
            await screen.sees(text)
        await page.get_by_role("button", name=re.compile("find_room")).click()
        await screen.sees("Room 7")
        assert await page.locator("img, main script, main style, main iframe").count() == 0
        assert "owned" not in await page.title()
        await answer(screen, "yes")
        await screen.sees("Booked 3 nights, kind: yes")
        await has_status(screen, "idle")
        thread_id = page.url.rpartition("/")[2]
        thread = await studio.services.threads.get_thread(thread_id)
        assert thread.values["messages"][-1]["content"] == "Booked 3 nights, kind: yes"


async def test_a_state_is_edited_and_the_thread_goes_on_from_there(
    browser: Browser, world: World, studio: Studio
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        thread_id = await begin(screen, "For two, please")
        await answer(screen, "first")
        await has_status(screen, "idle")
        before = await studio.services.threads.history(thread_id)
        slider = page.get_by_label("Step of the history")
        await slider.focus()
        await slider.press("ArrowLeft")
        await screen.sees("next: agree")
        await expect(page.get_by_text("Booked 1 nights, plain: first")).to_have_count(0, timeout=TIMEOUT)
        await screen.press("Edit and fork")
        field = page.get_by_label("Values")
        text = await field.input_value()
        await field.fill("{")
        await expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
        await field.fill(text.replace("For two, please", "For nine, please"))
        await screen.press("Save and go on")
        await answer(screen, "second")
        await screen.sees("Booked 1 nights, plain: second")
        await screen.sees("For nine, please")
        after = await studio.services.threads.history(thread_id)
        assert [state.checkpoint_id for state in after[-len(before) :]] == [
            each.checkpoint_id for each in before
        ]
        assert after[0].values["messages"][0]["content"] == "For nine, please"
        assert before[0].values["messages"][0]["content"] == "For two, please"


async def test_a_thread_goes_on_from_an_old_state_is_copied_and_deleted(
    browser: Browser, world: World, studio: Studio
) -> None:
    threads = studio.services.threads
    async with opened(browser, world.visitor.url) as screen:
        thread_id = await begin(screen, "A room")
        await answer(screen, "once")
        await has_status(screen, "idle")
        slider = screen.page.get_by_label("Step of the history")
        await slider.focus()
        await slider.press("ArrowLeft")
        await screen.sees("next: agree")
        await screen.press("Go on from here")
        await answer(screen, "again")
        await screen.sees("Booked 1 nights, plain: again")
        await screen.press("Copy")
        await expect(screen.page).not_to_have_url(re.compile(thread_id), timeout=TIMEOUT)
        copy_id = screen.page.url.rpartition("/")[2]
        assert (await threads.get_thread(copy_id)).values == (await threads.get_thread(thread_id)).values
        await screen.press("Delete")
        await screen.press("Delete it")
        await screen.heading("Threads")
        await expect(screen.page.locator(f"[data-row='{copy_id}']")).to_have_count(0, timeout=TIMEOUT)
        await expect(screen.page.locator(f"[data-row='{thread_id}']")).to_be_visible(timeout=TIMEOUT)


async def test_an_agent_that_takes_no_messages_has_a_form(
    browser: Browser, world: World, studio: Studio
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/chat")
        await choose(screen.page, "Assistant", "calculator")
        await screen.page.get_by_label("left").fill("19")
        await screen.page.get_by_label("right").fill("23")
        await screen.press("Send")
        await screen.page.wait_for_url(re.compile("/threads/"))
        await expect(screen.page.get_by_role("log")).to_contain_text('"sum": 42', timeout=TIMEOUT)


async def test_screens_of_threads_open_in_both_themes_and_on_a_phone(
    browser: Browser, world: World, studio: Studio
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        thread_id = await begin(screen, "Hello")
        await asked(screen)
    await shows_well(
        browser,
        world,
        {"/threads": "Threads", f"/threads/{thread_id}": thread_id, "/chat": "Chat"},
    )
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/threads/nobody")
        await screen.sees("There is nothing here")
        screen.errors = [error for error in screen.errors if "404" not in error]
