"""Approvals are answered once, by the first answer; they expire if they have an expiry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.approvals.support import ApprovalWorld, Run

from perdure.approvals.model import MAX_RESPONSE
from perdure.approvals.service import Approvals
from perdure.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from perdure.service.callers import Actor, Caller

RUN = Run("run-1")
MINUTE = 60_000_000
NOBODY = "00000000-0000-7000-8000-000000000000"


async def test_approving_goes_on_with_the_run_and_records_who_did_it(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN)
    answered = await approvals.as_("ann").approve(approval_id, comment="looks good")
    assert (answered.status, answered.responded_by, answered.response) == ("approved", "ann", "looks good")
    assert answered.responded_at is not None
    (decision,) = approvals.recorder.decisions
    assert decision.proceeds
    assert (decision.workflow_run_id, decision.node, decision.response) == ("run-1", "plan", "looks good")
    assert await approvals.events() == ["approval.requested", "approval.resolved"]
    assert await approvals.audit() == [("ann", "approve_approval", approval_id)]


@pytest.mark.parametrize(
    ("reason", "error"),
    [("too risky", "Rejected: too risky"), (None, "Rejected: no reason given"), (" ", None)],
)
async def test_rejecting_fails_the_run_with_its_reason(
    approvals: ApprovalWorld, reason: str | None, error: str | None
) -> None:
    rejected = await approvals.as_("ann").reject(await approvals.open(RUN), reason=reason)
    assert rejected.status == "rejected"
    (decision,) = approvals.recorder.decisions
    assert not decision.proceeds
    assert decision.error == (error or "Rejected: no reason given")


async def test_a_reply_gate_takes_a_text_or_a_rejection(approvals: ApprovalWorld) -> None:
    asked = await approvals.open(RUN, kind="reply")
    ann = approvals.as_("ann")
    for refused in (ann.approve(asked), ann.reply(asked, " "), ann.reply(asked, "x" * (MAX_RESPONSE + 1))):
        with pytest.raises(InvalidInput):
            await refused
    assert (await ann.reply(asked, "use\nPostgres")).response == "use\nPostgres"
    other = await approvals.open(RUN)
    with pytest.raises(InvalidInput, match="approve or reject"):
        await ann.reply(other, "hm")
    assert (await ann.reject(await approvals.open(RUN, kind="reply"))).status == "rejected"
    assert (await approvals.service.get(other)).status == "pending"


async def test_the_second_answer_is_a_conflict_that_says_who_won(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN)
    await approvals.as_("ann").approve(approval_id)
    for late in (approvals.as_("bob").reject(approval_id), approvals.as_("ann").approve(approval_id)):
        with pytest.raises(Conflict, match="was approved by ann at 20"):
            await late
    assert await approvals.told("run-1") == 1


async def test_of_many_who_answer_at_once_one_wins(approvals: ApprovalWorld) -> None:
    ids = [await approvals.open(Run(f"run-{n}")) for n in range(4)]
    people = [approvals.as_(f"p{n}") for n in range(6)]

    async def answer(number: int, approval_id: str) -> Any:
        who = people[number]
        return await (who.approve(approval_id) if number % 2 else who.reject(approval_id))

    calls = [(number, each) for each in ids for number in range(6)]
    answers = await asyncio.gather(*(answer(*call) for call in calls), return_exceptions=True)
    for approval_id in ids:
        found = zip(calls, answers, strict=True)
        won = [each for (_, of), each in found if of == approval_id and not isinstance(each, Conflict)]
        assert won == [await approvals.service.get(approval_id)]
    assert [await approvals.told(f"run-{n}") for n in range(4)] == [1] * 4


async def test_the_same_request_sent_twice_gets_its_first_answer(approvals: ApprovalWorld) -> None:
    ann, approval_id = approvals.as_("ann"), await approvals.open(RUN)
    first = await ann.approve(approval_id, idempotency_key="once")
    assert await ann.approve(approval_id, idempotency_key="once") == first
    assert await approvals.told("run-1") == 1


async def test_only_assignees_and_admins_answer_what_is_assigned(approvals: ApprovalWorld) -> None:
    first, second = [await approvals.open(Run(f"run-{n}"), assignees=("ann", "bob")) for n in range(2)]
    with pytest.raises(Forbidden, match="is for ann, bob"):
        await approvals.as_("eve").approve(first)
    assert (await approvals.as_("bob").approve(first)).responded_by == "bob"
    assert (await approvals.as_("root", "admin", "write").approve(second)).responded_by == "root"


async def test_what_does_not_exist_is_not_found(approvals: ApprovalWorld) -> None:
    other = ApprovalWorld(approvals.storage, approvals.clock, approvals.namespace + " other")
    foreign = await (await other.begin()).open(RUN)
    for approval_id in (NOBODY, foreign):
        for call in (approvals.service.get, approvals.service.approve, approvals.service.links):
            with pytest.raises(NotFound):
                await call(approval_id)


# --- expiry and reminders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["approve", "fail"])
async def test_an_approval_that_nobody_answers_expires_and_is_not_rejected(
    approvals: ApprovalWorld, action: str
) -> None:
    approval_id = await approvals.open(RUN, expires_after=MINUTE, on_expiry=action)
    assert (await approvals.settled(approval_id)).status == "pending"
    await approvals.pass_(61)
    expired = await approvals.settled(approval_id)
    assert (expired.status, expired.responded_by) == ("expired", None)
    # Other approvals in the same database may be due too, and a transaction may run twice.
    (decision,) = {each for each in approvals.recorder.decisions if each.approval_id == approval_id}
    assert await approvals.told(RUN.id) == 1
    assert decision.proceeds == (action == "approve")
    assert decision.error == "Expired: the gate post_plan was not answered in time"
    with pytest.raises(Conflict, match="was expired at"):
        await approvals.as_("ann").approve(approval_id)
    await approvals.timer.settle()
    assert await approvals.events() == ["approval.requested", "approval.resolved"]


async def test_reminders_come_again_until_it_is_answered(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN, remind_every=MINUTE, expires_after=MINUTE * 5 // 2)
    for count in (1, 2):
        await approvals.pass_(61)
        assert (await approvals.settled(approval_id)).reminders == count
        assert (await approvals.settled(approval_id)).reminders == count
    await approvals.pass_(61)
    assert (await approvals.settled(approval_id)).status == "expired"
    events = ["approval.requested", "approval.reminder", "approval.reminder", "approval.resolved"]
    assert await approvals.events() == events
    answered = await approvals.open(RUN, remind_every=MINUTE)
    await approvals.as_("ann").approve(answered)
    await approvals.pass_(600)
    assert (await approvals.settled(answered)).reminders == 0


async def test_without_a_time_it_waits_for_ever(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(RUN)
    await approvals.pass_(10 * 365 * 86_400)
    assert (await approvals.settled(approval_id)).status == "pending"
    assert (await approvals.as_("ann").approve(approval_id)).status == "approved"


async def test_one_that_cannot_be_settled_does_not_hold_up_the_others(
    approvals: ApprovalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await approvals.open(Run("run-1"), expires_after=MINUTE)
    second = await approvals.open(Run("run-2"), expires_after=MINUTE)
    whole = approvals.recorder.resume

    async def resume(tx: Any, decision: Any) -> None:
        if decision.approval_id == first:
            raise RuntimeError("its definition is broken")
        await whole(tx, decision)

    monkeypatch.setattr(approvals.recorder, "resume", resume)
    await approvals.pass_(61)
    assert (await approvals.settled(second)).status == "expired"
    assert (await approvals.service.get(first)).status == "pending"
    monkeypatch.undo()
    await approvals.pass_(61)
    assert (await approvals.settled(first)).status == "expired"


# --- lists ------------------------------------------------------------------------------------------------


async def test_pending_ones_come_first_and_then_the_newest(approvals: ApprovalWorld) -> None:
    ids = [await approvals.open(Run(f"run-{n}", trigger_id=f"t#{n % 2}"), artifact="long") for n in range(6)]
    ann = approvals.as_("ann")
    await ann.approve(ids[4])
    await ann.reject(ids[1])
    order = [ids[n] for n in (5, 3, 2, 0, 4, 1)]
    seen: list[str] = []
    cursor = None
    while True:
        page = await ann.list(limit=2, cursor=cursor)
        seen += [each.approval_id for each in page.items]
        assert all(each.artifact is None for each in page.items)
        cursor = page.next
        if cursor is None:
            break
    assert seen == order

    async def found(**wanted: Any) -> list[int]:
        return [ids.index(each.approval_id) for each in (await ann.list(**wanted)).items]

    assert await found(status="pending") == [5, 3, 2, 0]
    assert await found(status="rejected") == [1]
    assert await found(trigger_id="t#1") == [5, 3, 1]
    assert await found(trigger_id="t#1", status="rejected") == [1]
    assert await found(workflow_run_id="run-4") == [4]
    assert await found(limit=0) == []
    for wrong in (
        {"cursor": "x"},
        {"status": "open"},
        {"limit": 1001},
        {"trigger_id": "a", "workflow_run_id": "b"},
    ):
        with pytest.raises(InvalidInput):
            await ann.list(**wrong)


async def test_the_newest_pending_one_of_a_trigger(approvals: ApprovalWorld) -> None:
    asked = await approvals.open(RUN, kind="reply")
    newest = await approvals.open(RUN, "build")
    assert (await approvals.service.pending("acme/app#7")).approval_id == newest
    assert (await approvals.service.pending("acme/app#7", kind="reply")).approval_id == asked
    await approvals.service.reply(asked, "yes")
    with pytest.raises(NotFound):
        await approvals.service.pending("acme/app#7", kind="reply")


async def test_an_approval_is_found_by_the_beginning_of_its_id(approvals: ApprovalWorld) -> None:
    first = await approvals.open(RUN, artifact="the plan")
    assert (await approvals.service.get(first[:-1])).artifact == "the plan"
    second = await approvals.open(RUN)
    common = next(first[:n] for n in range(len(first), -1, -1) if second.startswith(first[:n]))
    if common:
        with pytest.raises(NotFound, match="more than one"):
            await approvals.service.get(common)


async def test_assignees_and_who_answered_are_known_by_the_names_of_their_tokens(
    approvals: ApprovalWorld,
) -> None:
    id = await approvals.open(Run("run-1"), assignees=["ann"])
    spaces = (approvals.namespace,)

    def holder(token_id: str, name: str) -> Approvals:
        caller = Caller(Actor(token_id, name), frozenset({"write"}), approvals.namespace, spaces)
        return approvals.service.acting_as(caller)

    with pytest.raises(Forbidden, match="is for ann"):
        await holder("token-1", "bob").approve(id)
    assert (await holder("token-2", "ann").approve(id)).responded_by == "ann"
    assert ("token-2", "approve_approval", id) in await approvals.audit()
    id = await approvals.open(Run("run-2"), assignees=["token-3"])
    assert (await holder("token-3", "eve").approve(id)).responded_by == "eve"
