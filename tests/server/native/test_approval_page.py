"""The page of a link: showing it decides nothing, its form decides once, agents' output is plain text."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from tests.approvals.support import ApprovalWorld, Recorder, Run
from tests.server.support import Visitor, serving
from tests.support.browser import browsing

from perdure import InMemoryLightningStore
from perdure.approvals.service import Approvals, LinkedApprovals
from perdure.kernel.config import SecretKey
from perdure.testing.clock import ManualClock

KEY = SecretKey("only-the-operator-knows")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
HOSTILE = "<script>document.title = 'owned'</script>\n<img src=x onerror=alert(1)>\n&amp; 'quotes' \"double\""


class Desk(NamedTuple):
    """A server with a waiting approval."""

    visitor: Visitor
    world: ApprovalWorld
    approval_id: str

    async def link(self, assignee: str = "ann", **options: Any) -> str:
        return (await self.world.service.create_link(self.approval_id, assignee, **options)).path

    async def status(self) -> str:
        return (await self.world.service.get(self.approval_id)).status


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        world = await ApprovalWorld(store.storage, ManualClock(), "default").begin()
        visitor.app.services.linked_approvals = LinkedApprovals(store.storage, Recorder())
        visitor.app.services.approvals = Approvals(store.storage, Recorder())
        approval_id = await world.open(Run("run-1"), summary=HOSTILE, artifact=HOSTILE)
        yield Desk(visitor, world, approval_id)


def text_of(answer: Any) -> str:
    return bytes(answer.body).decode() if isinstance(answer.body, bytes) else str(answer.body)


async def test_looking_changes_nothing_and_needs_no_key(desk: Desk) -> None:
    path = await desk.link()
    for method in ("GET", "HEAD", "GET"):
        answer = await desk.visitor.ask(method, path)
        assert answer.status == 200
    headers = answer.headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src" not in policy
    assert "unsafe-inline" not in policy
    page = text_of(answer)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "You answer as ann" in page
    assert await desk.status() == "pending"


async def test_the_form_answers_once_in_the_name_of_the_assignee(desk: Desk) -> None:
    path = await desk.link()
    done = await desk.visitor.post(path, data=b"answer=reject&text=too+risky", headers=FORM)
    assert done.status == 200
    assert "Your answer is recorded" in text_of(done)
    approval = await desk.world.service.get(desk.approval_id)
    assert (approval.status, approval.responded_by, approval.response) == ("rejected", "ann", "too risky")
    again = await desk.visitor.post(path, data=b"answer=approve", headers=FORM)
    assert again.status == 409
    assert "It was rejected by ann" in text_of(again)
    assert "It was rejected by ann" in text_of(await desk.visitor.get(path))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.test"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
async def test_a_form_of_another_site_is_refused(desk: Desk, headers: dict[str, str], status: int) -> None:
    answer = await desk.visitor.post(await desk.link(), data=b"answer=approve", headers={**FORM, **headers})
    assert answer.status == status
    assert (await desk.status() == "approved") == (status == 200)


async def test_what_is_no_valid_link_shows_nothing(desk: Desk) -> None:
    right = await desk.link()
    wrong = right[:-1] + ("A" if right[-1] != "A" else "B")
    for path in (wrong, "/approve/x", "/approve/" + "0" * 24 + "-" + "a" * 43):
        for answer in (
            await desk.visitor.get(path),
            await desk.visitor.post(path, data=b"answer=approve", headers=FORM),
        ):
            assert answer.status == 404
            assert "run-1" not in text_of(answer)
    assert (await desk.visitor.get("/approve/x", params={"token": right})).status == 404
    ended = await desk.link(expires_in=0.000001)
    assert "no longer valid" in text_of(await desk.visitor.post(ended, data=b"answer=approve", headers=FORM))
    assert "Approve</button>" not in text_of(await desk.visitor.get(ended))
    assert await desk.status() == "pending"


async def test_bad_forms_change_nothing(desk: Desk) -> None:
    path = await desk.link()
    for body in (
        b"",
        b"answer=maybe",
        b"answer=reply&text=x",
        b"answer=approve&text=" + b"x" * 20_000,
        b"\xff",
    ):
        answer = await desk.visitor.post(path, data=body, headers=FORM)
        assert answer.status == 422, body[:20]
    assert (await desk.visitor.post(path, data=b"x" * 70_000, headers=FORM)).status == 413
    assert await desk.status() == "pending"


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1200)])
async def test_a_person_approves_in_a_real_browser(desk: Desk, scheme: Any, width: int) -> None:
    path = await desk.link()
    async with browsing() as browser:
        page = await browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        await page.goto(desk.visitor.url + path)
        assert await page.title() == "Approval"
        assert "<script>" in await page.inner_text("section .text")
        wide = await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert wide
        assert await desk.status() == "pending"
        await page.fill("textarea", "looks good")
        await page.click("button[value=approve]")
        await page.wait_for_selector("[role=status]")
        assert "approved by ann" in re.sub(r"\s+", " ", await page.inner_text("[role=status]"))
        assert problems == []
    approval = await desk.world.service.get(desk.approval_id)
    assert (approval.status, approval.response) == ("approved", "looks good")
