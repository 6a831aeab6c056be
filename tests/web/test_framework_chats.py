"""Traces of frameworks, read as chats on the page."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect
from tests.cli.test_framework_traces import messages_in_table
from tests.rollouts.test_frameworks import ANSWER, FRAMEWORKS, QUESTION, RESULT, sent
from tests.server.support import serving
from tests.web.world import TIMEOUT, opened

from perdure import InMemoryLightningStore


@pytest.mark.asyncio(loop_scope="package")
async def test_a_trace_of_each_framework_is_read_as_a_chat(browser: Browser) -> None:
    for framework in FRAMEWORKS:
        async with (
            InMemoryLightningStore() as store,
            serving(store, keep_traces=True) as visitor,
            opened(browser, visitor.url) as screen,
        ):
            trace = await sent(visitor, framework)
            await screen.open(f"/traces/{trace['trace_id']}?view=chat")
            for words in (QUESTION, ANSWER):
                await screen.sees(words)
            main = screen.page.locator("main")
            await expect(main).to_contain_text("weather", timeout=TIMEOUT)
            said = (await visitor.get(f"/api/v1/traces/{trace['trace_id']}/messages")).body["items"]
            # The command shows as many: its test compares it with the same table.
            await screen.sees(f"Conversation ({messages_in_table(framework)})")
            (answer, *_) = [message["text"] for message in said if message["role"] == "tool"]
            assert RESULT in answer
            assert ANSWER not in answer
            # What the tool said is a message of its own, or folded into the call.
            for _ in await main.locator("button.folded-title[aria-expanded=false]").all():
                await main.locator("button.folded-title[aria-expanded=false]").first.click()
            texts = (await main.inner_text()).replace(ANSWER, "")
            assert answer.strip() in texts, texts
            await screen.shot(f"chat-{framework}")
