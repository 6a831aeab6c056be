"""Links answer an approval once, in the name of their assignee; only the hashes of secrets are stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.approvals.support import ApprovalWorld, Run
from tests.threads.support import open_storage

from perdure.approvals.link_model import LinkToken, parse_link_token
from perdure.approvals.model import CreatedLink
from perdure.kernel.errors import Conflict, InvalidInput
from perdure.testing.clock import ManualClock

RUN = Run("run-1")


def token(link: CreatedLink) -> LinkToken:
    found = parse_link_token(link.path.removeprefix("/approve/"))
    assert found is not None
    return found


async def test_a_link_shows_its_approval_and_answers_it_once(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN, artifact="the plan")
    link = await approvals.as_("root", "admin").create_link(approval_id, "ann")
    found = await approvals.linked.find(token(link))
    assert found is not None
    assert (found.approval.id, found.approval.artifact, found.is_valid) == (approval_id, "the plan", True)
    assert (await approvals.service.get(approval_id)).status == "pending"
    answered = await approvals.linked.answer(token(link), "reject", "no")
    assert (answered.approval.status, answered.approval.responded_by) == ("rejected", "ann")
    assert not answered.is_valid
    (listed,) = await approvals.service.links(approval_id)
    assert listed.used_at is not None
    with pytest.raises(Conflict, match="was rejected by ann"):
        await approvals.linked.answer(token(link), "approve", None)
    assert await approvals.told("run-1") == 1
    assert ("ann", "reject_approval", approval_id) in await approvals.audit()


async def test_of_two_links_that_answer_at_once_one_wins_and_is_used_up(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN, assignees=("ann", "bob"))
    links = [await approvals.service.create_link(approval_id, name) for name in ("ann", "bob")]
    answers = await asyncio.gather(
        *(approvals.linked.answer(token(link), "approve", None) for link in links * 2), return_exceptions=True
    )
    assert sum(isinstance(each, Conflict) for each in answers) == 3
    assert sum(each.used_at is not None for each in await approvals.service.links(approval_id)) == 1
    assert await approvals.told("run-1") == 1


async def test_a_link_ends_and_a_wrong_secret_finds_nothing(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN)
    link = await approvals.service.create_link(approval_id, "ann", expires_in=60)
    right = token(link)
    assert await approvals.linked.find(right._replace(hash="0" * 64)) is None
    assert await approvals.linked.find(right._replace(link_id="0" * 24)) is None
    await approvals.pass_(61)
    with pytest.raises(Conflict, match="no longer valid"):
        await approvals.linked.answer(right, "approve", None)
    assert (await approvals.service.get(approval_id)).status == "pending"
    assert await approvals.told("run-1") == 0


async def test_a_link_is_for_an_assignee_of_a_pending_approval(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN, assignees=("ann",))
    with pytest.raises(Conflict, match="is for ann, not for eve"):
        await approvals.service.create_link(approval_id, "eve")
    for wrong in (
        {"assignee": ""},
        {"assignee": "ann", "expires_in": 0},
        {"assignee": "ann", "expires_in": 1e9},
    ):
        with pytest.raises(InvalidInput):
            await approvals.service.create_link(approval_id, **wrong)
    await approvals.service.approve(approval_id)
    with pytest.raises(Conflict, match="was approved"):
        await approvals.service.create_link(approval_id, "ann")


async def test_the_secret_is_in_no_row(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "perdure.db"))
    world = await ApprovalWorld(storage, ManualClock(), "default").begin()
    link = await world.service.create_link(await world.open(RUN), "ann")
    await storage.close()
    secret = link.path[-43:]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240 - nobody else waits
    assert link.link_id.encode() in stored
    assert secret.encode() not in stored


@pytest.mark.parametrize("text", ["", "x", "0" * 24, "0" * 24 + "-" + "a" * 42, "g" * 24 + "-" + "a" * 43])
def test_what_is_no_token_is_not_looked_for(text: str) -> None:
    assert parse_link_token(text) is None
