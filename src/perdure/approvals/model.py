"""Approvals: records, transitions and the meaning of a decision. Everything here is pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, cast, get_args

import msgspec

from perdure.kernel.checks import check_text
from perdure.kernel.clock import to_iso, to_iso_or_none
from perdure.kernel.errors import Conflict, Forbidden, InvalidInput
from perdure.kernel.machine import Machine
from perdure.kernel.pages import Keyset
from perdure.kernel.record import Record
from perdure.kernel.storage.port import Tx
from perdure.service.callers import Credential

ApprovalStatus = Literal["pending", "approved", "rejected", "expired", "withdrawn"]
ApprovalKind = Literal["approve", "reply"]
OnExpiry = Literal["approve", "fail"]

APPROVAL_STATUSES: Final[tuple[ApprovalStatus, ...]] = get_args(ApprovalStatus)
APPROVAL_KINDS: Final[tuple[ApprovalKind, ...]] = get_args(ApprovalKind)
PENDING, APPROVED, REJECTED, EXPIRED, WITHDRAWN = APPROVAL_STATUSES
APPROVE, REPLY = APPROVAL_KINDS

MAX_SUMMARY = 4000
"""Maximum length of a stored summary."""
MAX_ARTIFACT = 64 << 10
"""Maximum length of a stored artifact."""
MAX_RESPONSE = 16 << 10
"""Maximum length of a reply, a reason or a comment, in UTF-8 bytes."""
MAX_ASSIGNEES = 100
MAX_NAME = 200
"""Maximum length of the name of an assignee, in UTF-8 bytes."""
LINK_SECONDS: Final = 7 * 86_400.0
"""Default lifetime of a link."""
MAX_LINK_SECONDS: Final = 90 * 86_400.0
NO_REASON: Final = "no reason given"

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


# --- records ----------------------------------------------------------------------------------------------


class Approval(Record, kw_only=True):
    """A gate of a workflow run that waits, or waited, for a person. Times are ISO 8601."""

    approval_id: str
    workflow_run_id: str
    workflow_name: str
    trigger_id: str
    gate: str
    label: str
    """Label of the phase that waits."""
    status: ApprovalStatus
    kind: ApprovalKind
    """`approve` asks for yes or no, `reply` asks for a text."""
    summary: str
    artifact: str | None = None
    """Content to review; lists leave it out."""
    assignees: list[str]
    """People who may decide; empty allows all callers with write access."""
    requested_by: str | None = None
    created_at: str
    expires_at: str | None = None
    on_expiry: OnExpiry
    """Effect on the run if no person answers in time."""
    reminders: int
    """Number of reminders that were sent."""
    responded_by: str | None = None
    responded_at: str | None = None
    response: str | None = None
    """The reply, the reason or the comment."""
    responded_with: Credential | None = None
    """Credential of the answer; null without an answer, or from a caller without a credential."""
    responded_with_id: str | None = None
    """Id of that token or link; for a login, the id of its token."""
    answer_by: list[Credential] = msgspec.field(default_factory=list)
    """Credentials that may answer; empty allows all."""


class ApprovalLink(Record, kw_only=True):
    """A link that decides an approval once, in the name of an assignee."""

    link_id: str
    approval_id: str
    assignee: str
    created_at: str
    expires_at: str
    used_at: str | None = None


class CreatedLink(ApprovalLink, kw_only=True):
    """A link with its secret, which is shown once."""

    path: str
    """Path of its page, including the secret."""
    url: str | None = None
    """URL of its page, if the server knows its address (the setting `public_url`)."""


# --- gates ------------------------------------------------------------------------------------------------


class GatedRun(Protocol):
    """Fields of a workflow run that an approval needs."""

    @property
    def id(self) -> str: ...
    @property
    def workflow_name(self) -> str: ...
    @property
    def trigger_id(self) -> str: ...


class Resumer(Protocol):
    """Port that continues a run when one of its approvals is resolved."""

    async def lock(self, tx: Tx, approval: ApprovalRow) -> bool:
        """Lock what `resume` changes, before the approval is locked. Return False if the run is gone."""
        ...

    async def resume(self, tx: Tx, decision: Decision) -> None:
        """Continue with the node that has waited."""
        ...


class NewGate(msgspec.Struct, frozen=True, kw_only=True):
    """An approval to request. Times are microseconds."""

    gate: str
    """Name of the gate, such as `post_architect`."""
    label: str
    """Label of the phase that waits, such as `plan_iter_2`."""
    summary: str
    """What to decide: the message of the gate, or the question of the agent."""
    kind: ApprovalKind = "approve"
    artifact: str | None = None
    """Content to review, such as a plan."""
    requested_by: str | None = None
    assignees: Sequence[str] = ()
    """People who may decide; empty allows all callers with write access."""
    expires_after: int | None = None
    on_expiry: OnExpiry = "fail"
    remind_every: int | None = None
    answer_by: Sequence[Credential] = ()
    """Credentials that may answer; empty allows all."""


class Decision(NamedTuple):
    """Resolution of an approval."""

    approval_id: str
    workflow_run_id: str
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
        """Return whether the run continues."""
        return self.status == APPROVED or (self.status == EXPIRED and self.on_expiry == "approve")

    @property
    def error(self) -> str:
        """Return the error of a run that does not continue."""
        if self.status == EXPIRED:
            return f"Expired: the gate {self.gate} was not answered in time"
        return f"Rejected: {self.response or NO_REASON}"


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
    responded_with: str | None
    responded_with_id: str | None
    answer_by: str | None
    artifact: str | None = None
    """Written with the row, but read separately, because lists do not need it."""

    @property
    def assigned(self) -> list[str]:
        """Return the assignees; empty allows all callers."""
        return self.assignees.split("\n") if self.assignees else []

    @property
    def allowed_credentials(self) -> list[str]:
        """Return the credentials that may answer; empty allows all."""
        return self.answer_by.split(",") if self.answer_by else []

    def resolve(self, event: str, now: int, response: str | None, actor: str | None) -> bool:
        """Apply an event. If the approval is already resolved, change nothing and return False."""
        if not APPROVAL.moves(self.status, event):
            return False
        self.status = APPROVAL.step(self.status, event)
        self.response, self.responded_by, self.responded_at = response, actor, now
        self.open, self.due_at = 0, None
        return True

    def decision(self) -> Decision:
        """Return the resolution."""
        return Decision(
            approval_id=self.id,
            workflow_run_id=self.workflow_run_id,
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
    """Build the row of a new approval."""
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
        responded_with=None,
        responded_with_id=None,
        answer_by=",".join(gate.answer_by) or None,
        artifact=None if gate.artifact is None else storable(gate.artifact, MAX_ARTIFACT),
    )


def next_due(expires_at: int | None, remind_every: int | None, now: int) -> int | None:
    """Return when an open approval expires or is due for a reminder, whichever comes first."""
    times = [expires_at] if expires_at is not None else []
    if remind_every is not None:
        times.append(now + remind_every)
    return min(times, default=None)


def storable(text: str, most: int) -> str:
    """Return the beginning of an agent's text, in characters that every database accepts."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return cut.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


# --- resolving --------------------------------------------------------------------------------------------


Answer = Literal["approve", "reject", "reply"]
ANSWERS: Final[tuple[Answer, ...]] = get_args(Answer)
EVENTS: Final = {"approve": "approved", "reject": "rejected", "reply": "replied"}


class Resolution(msgspec.Struct, frozen=True):
    """A checked answer to an approval."""

    approval_id: str
    answer: Answer
    response: str | None
    everybody: bool = True
    """Whether callers other than the assignees may answer."""
    credential: Credential | None = None
    """Credential of the caller; None for code of this process, and for a caller without a secret."""
    credential_id: str | None = None


def check_response(text: object, answer: str) -> str | None:
    """Check the text of an answer: required for a reply, optional otherwise."""
    if text is None and answer != "reply":
        return None
    checked = check_text(text, "the reply" if answer == "reply" else "the text", max_length=MAX_RESPONSE)
    if answer == "reply" and not checked.strip():
        raise InvalidInput("a reply must not be empty")
    return checked if checked.strip() else None


def check_kind(row: ApprovalRow, answer: Answer) -> None:
    """Check the answer: approve or reject for an approve gate, reply or reject for a reply gate."""
    if answer == "approve" and row.kind == REPLY:
        raise InvalidInput(f"approval {row.id} asks for a reply: send a text")
    if answer == "reply" and row.kind == APPROVE:
        raise InvalidInput(f"approval {row.id} takes no reply: approve or reject it")


NAMES: Final = {
    "key": "the API key",
    "token": "a token",
    "local": "the command on the server's machine",
    "link": "a link",
    "login": "a login of the dashboard",
    None: "a caller without a credential",
}


def check_credential(row: ApprovalRow, credential: Credential | None) -> None:
    """Refuse an answer with a credential that the gate does not allow."""
    allowed = row.allowed_credentials
    if allowed and credential not in allowed:
        raise Forbidden(
            f"approval {row.id} is answered by {' or '.join(NAMES[name] for name in allowed)}, not by "
            f"{NAMES[credential]}: see answer_by of the gate {row.gate}"
        )


def already(row: ApprovalRow) -> Conflict:
    """Return the conflict of a resolved approval: how, when and by whom it was resolved."""
    by = f" by {row.responded_by}" if row.responded_by else ""
    at = f" at {to_iso(row.responded_at)}" if row.responded_at is not None else ""
    return Conflict(f"approval {row.id} was {row.status}{by}{at}")


def row_to_approval(row: ApprovalRow) -> Approval:
    """Convert a row to the record of an approval."""
    return Approval(
        approval_id=row.id,
        workflow_run_id=row.workflow_run_id,
        workflow_name=row.workflow_name,
        trigger_id=row.trigger_id,
        gate=row.gate,
        label=row.label,
        status=cast(ApprovalStatus, row.status),
        kind=cast(ApprovalKind, row.kind),
        summary=row.summary,
        artifact=row.artifact,
        assignees=row.assigned,
        requested_by=row.requested_by,
        created_at=to_iso(row.created_at),
        expires_at=to_iso_or_none(row.expires_at),
        on_expiry=cast(OnExpiry, row.on_expiry),
        reminders=row.reminders,
        responded_by=row.responded_by,
        responded_at=to_iso_or_none(row.responded_at),
        response=row.response,
        responded_with=cast("Credential | None", row.responded_with),
        responded_with_id=row.responded_with_id,
        answer_by=cast("list[Credential]", row.allowed_credentials),
    )


# --- pages ------------------------------------------------------------------------------------------------


class ApprovalCursor(NamedTuple):
    """Position in a list: open or not, creation time, id."""

    open: int
    created_at: int
    id: str


FIRST: Final = ApprovalCursor(1, 2**62, "")


class ApprovalFilter(NamedTuple):
    """Filters of a list of approvals, and its page."""

    status: str | None
    workflow_run_id: str | None
    trigger_id: str | None
    place: ApprovalCursor
    limit: int


APPROVALS: Final = Keyset[ApprovalRow, ApprovalCursor](
    "approvals", FIRST, lambda row: (row.open, row.created_at, row.id)
)
