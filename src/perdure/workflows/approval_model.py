"""Approvals: what they are, how they are resolved, and what a decision means. Everything here is pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec

from perdure.kernel.machine import Machine

ApprovalStatus = Literal["pending", "approved", "rejected", "expired", "withdrawn"]
ApprovalKind = Literal["approve", "reply"]
OnExpiry = Literal["approve", "fail"]

APPROVAL_STATUSES: Final[tuple[ApprovalStatus, ...]] = get_args(ApprovalStatus)
APPROVAL_KINDS: Final[tuple[ApprovalKind, ...]] = get_args(ApprovalKind)
PENDING, APPROVED, REJECTED, EXPIRED, WITHDRAWN = APPROVAL_STATUSES
APPROVE, REPLY = APPROVAL_KINDS

MAX_SUMMARY = 4000
"""How many characters of a summary are kept."""
MAX_ARTIFACT = 64 << 10
"""How many characters of an artifact are kept."""
MAX_RESPONSE = 16 << 10
"""The length of a reply, a reason or a comment, in UTF-8 bytes."""
MAX_ASSIGNEES = 100

APPROVAL = (
    Machine(
        "approval",
        APPROVAL_STATUSES,
        start={"requested": PENDING},
        final=[APPROVED, REJECTED, EXPIRED, WITHDRAWN],
    )
    .on("approved", [PENDING], APPROVED)
    .on("replied", [PENDING], APPROVED)
    .on("rejected", [PENDING], REJECTED)
    .on("expired", [PENDING], EXPIRED)
    .on("withdrawn", [PENDING], WITHDRAWN)
)


class GatedRun(Protocol):
    """What an approval needs to know of its workflow run."""

    @property
    def id(self) -> str: ...
    @property
    def workflow_name(self) -> str: ...
    @property
    def trigger_id(self) -> str: ...


class NewGate(msgspec.Struct, frozen=True, kw_only=True):
    """An approval that is to be requested. Times are microseconds."""

    gate: str
    """The name of the gate, such as `post_architect`."""
    label: str
    """The label of the phase that waits, such as `plan_iter_2`."""
    summary: str
    """What is to be decided: the message of the gate, or the question of the agent."""
    kind: ApprovalKind = "approve"
    artifact: str | None = None
    """What is to be looked at, such as a plan."""
    requested_by: str | None = None
    assignees: Sequence[str] = ()
    """Who may decide; empty is everybody who may write."""
    expires_after: int | None = None
    on_expiry: OnExpiry = "fail"
    remind_every: int | None = None


class Decision(NamedTuple):
    """How an approval was resolved."""

    approval_id: str
    node: str
    gate: str
    label: str
    kind: str
    status: str
    on_expiry: str
    response: str | None
    """The reply, the reason or the comment."""
    responded_by: str | None
    responded_at: int

    @property
    def proceeds(self) -> bool:
        """Whether the run goes on."""
        return self.status == APPROVED or (self.status == EXPIRED and self.on_expiry == "approve")

    @property
    def error(self) -> str:
        """Why the run does not go on."""
        if self.status == EXPIRED:
            return f"Expired: nobody answered the gate {self.gate} in time"
        return f"Rejected: {self.response or 'no reason given'}"


class ApprovalRow(msgspec.Struct):
    """A row of `workflow_approvals`."""

    id: str
    workflow_run_id: str
    gate: str
    status: str
    kind: str
    requested_by: str | None
    responded_by: str | None
    responded_at: int | None
    created_at: int
    open: int
    workflow_name: str
    trigger_id: str
    node: str
    label: str
    assignees: str | None
    expires_at: int | None
    on_expiry: str
    remind_every: int | None
    reminders: int
    due_at: int | None
    summary: str
    response: str | None
    artifact: str | None

    @property
    def assigned(self) -> list[str]:
        """Who may decide; empty is everybody."""
        return self.assignees.split("\n") if self.assignees else []

    def resolve(self, event: str, now: int, response: str | None, actor: str | None) -> bool:
        """Move on with an event; False, and nothing changes, if it is resolved already."""
        if not APPROVAL.moves(self.status, event):
            return False
        self.status = APPROVAL.step(self.status, event)
        self.response, self.responded_by, self.responded_at = response, actor, now
        self.open, self.due_at = 0, None
        return True

    def decision(self) -> Decision:
        """How it was resolved."""
        return Decision(
            approval_id=self.id,
            node=self.node,
            gate=self.gate,
            label=self.label,
            kind=self.kind,
            status=self.status,
            on_expiry=self.on_expiry,
            response=self.response,
            responded_by=self.responded_by,
            responded_at=self.responded_at or 0,
        )


def new_row(id: str, run: GatedRun, node: str, gate: NewGate, now: int) -> ApprovalRow:
    """The row of an approval that is requested now."""
    expires_at = None if gate.expires_after is None else now + gate.expires_after
    return ApprovalRow(
        id=id,
        workflow_run_id=run.id,
        gate=gate.gate,
        status=APPROVAL.start["requested"],
        kind=gate.kind,
        requested_by=gate.requested_by,
        responded_by=None,
        responded_at=None,
        created_at=now,
        open=1,
        workflow_name=run.workflow_name,
        trigger_id=run.trigger_id,
        node=node,
        label=gate.label,
        assignees="\n".join(gate.assignees) or None,
        expires_at=expires_at,
        on_expiry=gate.on_expiry,
        remind_every=gate.remind_every,
        reminders=0,
        due_at=next_due(expires_at, gate.remind_every, now),
        summary=storable(gate.summary, MAX_SUMMARY),
        response=None,
        artifact=None if gate.artifact is None else storable(gate.artifact, MAX_ARTIFACT),
    )


def next_due(expires_at: int | None, remind_every: int | None, now: int) -> int | None:
    """When an open approval expires or is to be reminded of, whichever comes first."""
    times = [expires_at] if expires_at is not None else []
    if remind_every is not None:
        times.append(now + remind_every)
    return min(times, default=None)


def storable(text: str, most: int) -> str:
    """The beginning of a text that an agent wrote, in characters that every database takes."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return cut.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
