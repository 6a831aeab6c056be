"""Approval webhooks, sent to a real server: signed, retried, and sent once over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.outbox.webhooks.support import SECRET, Receiver, receiving
from tests.workflows.test_approval_runs import agents, asked, ended, started

from perdure.approvals.notices import ApprovalNotices
from perdure.kernel.config import load_settings
from perdure.outbox.model import DeliveryPolicy, Retries
from perdure.outbox.webhooks import verify
from perdure.runtime.app import App
from perdure.runtime.components import build_components, running
from perdure.runtime.stores import open_configured

PUBLIC = "https://perdure.test"
ASSIGNED = "assignees: [ann, bob]\n    remind_every: 0.3"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry refused notices soon."""
    policy = DeliveryPolicy(retries=Retries(first=0.05, longest=0.05))
    monkeypatch.setattr(ApprovalNotices, "policy", policy)


@asynccontextmanager
async def serving(folder: Path, receiver: Receiver) -> AsyncIterator[Any]:
    """Start a server without HTTP, with a worker. Yield its app."""
    settings = load_settings(
        {
            "database_url": f"sqlite:///{folder}/perdure.db",
            "webhook_secret": SECRET,
            "webhook_allow_private": True,
            "approval_webhook_url": receiver.url + "/approvals",
            "public_url": PUBLIC,
        }
    )
    store = open_configured(settings)
    app = App(store, settings)
    try:
        async with running(build_components(app, agents, files=False)):
            yield app
    finally:
        await app.services.finish()
        await store.close()


def sent(receiver: Receiver, event: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the accepted notices of an event with their ids. Each has a valid signature."""
    notices = []
    for request in receiver.got:
        content: Any = verify(request.body, request.headers, SECRET)
        if content["event"] == event:
            notices.append((request.headers["webhook-id"], content))
    return notices


async def until(receiver: Receiver, event: str, count: int = 1) -> list[tuple[str, dict[str, Any]]]:
    async with asyncio.timeout(20):
        while len(found := sent(receiver, event)) < count:
            await receiver.has(len(receiver.got) + 1)
        return found


async def test_what_is_asked_reminded_of_and_answered_is_sent_signed_and_again_if_refused(
    tmp_path: Path,
) -> None:
    async with receiving() as receiver:
        receiver.answers = [500]
        async with serving(tmp_path, receiver) as perdure:
            run_id = await started(perdure, ASSIGNED)
            release = await asked(perdure, "release")
            (refused, first), (taken, second) = await until(receiver, "approval.requested", 2)
            # The retry is the same notice, with links that replace those of the refused one.
            assert refused == taken
            assert first["approval"] == second["approval"]
            assert second["approval"]["approval_id"] == release.approval_id
            assert second["approval"]["summary"] == "Release it?"
            assert [each["assignee"] for each in second["links"]] == ["ann", "bob"]
            assert all(each["url"].startswith(f"{PUBLIC}/approve/") for each in second["links"])
            assert not {each["url"] for each in first["links"]} & {each["url"] for each in second["links"]}
            assert "secret" not in str(second["approval"])
            ((_, reminder),) = (await until(receiver, "approval.reminder"))[:1]
            assert reminder["approval"]["reminders"] >= 1
            assert [each["assignee"] for each in reminder["links"]] == ["ann", "bob"]
            await perdure.services.approvals.approve(release.approval_id, comment="yes")
            ((_, resolved),) = await until(receiver, "approval.resolved")
            assert (resolved["approval"]["status"], resolved["approval"]["response"]) == ("approved", "yes")
            assert "links" not in resolved
            assert (await ended(perdure, run_id)).status == "succeeded"
        async with serving(tmp_path, receiver) as perdure:
            # No notice is pending after a restart.
            assert (await perdure.services.outbox.list(status="pending")).total == 0
        assert len(sent(receiver, "approval.requested")) == 2
        assert len(sent(receiver, "approval.resolved")) == 1


async def test_a_notice_that_could_not_be_sent_is_sent_once_after_a_restart(tmp_path: Path) -> None:
    async with receiving() as receiver:
        port = receiver.port
        nobody = Receiver()
        nobody.port = port
    async with serving(tmp_path, nobody) as perdure:
        await started(perdure)
        await asked(perdure, "release")
    async with receiving(port=port) as receiver, serving(tmp_path, receiver) as perdure:
        ((_, notice),) = await until(receiver, "approval.requested")
        assert notice["approval"]["status"] == "pending"
        await perdure.services.approvals.reject(notice["approval"]["approval_id"], reason="no")
        ((_, resolved),) = await until(receiver, "approval.resolved")
        assert resolved["approval"]["status"] == "rejected"
        assert len(sent(receiver, "approval.requested")) == 1
