"""Operations on approvals. The run of an approval is locked before it, so that one answer wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.approvals import link_model, sql
from perdure.approvals.gates import REMINDER, RESOLVED, tell
from perdure.approvals.link_model import ApprovalLinkRow, NewLink
from perdure.approvals.model import (
    APPROVAL_STATUSES,
    EVENTS,
    ApprovalFilter,
    ApprovalRow,
    Resolution,
    Resumer,
    already,
    check_credential,
    check_kind,
    next_due,
)
from perdure.kernel.clock import MICROS, to_seconds
from perdure.kernel.errors import Conflict, Forbidden, NotFound
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.service.callers import format_actor
from perdure.service.idempotency import keyed_as

SYSTEM_ACTOR = "system"
"""Actor of an answer from this process without a named caller."""
DUE_ROWS = 100
POSTPONED = 60 * MICROS
MAX_LINKS = 1000
"""Maximum number of links per approval."""


# --- resolving --------------------------------------------------------------------------------------------


@keyed_as("resolve_approval")
async def resolve(tx: Tx, resolutions: Sequence[Resolution], resumer: Resumer) -> list[str]:
    """Answer an approval and continue its run. Of concurrent answers, one wins.

    `resolutions` has one element: the run of a second one would have to be locked after the changes of
    the first one.
    """
    (resolution,) = resolutions
    await _resolve(tx, resolution, resumer)
    return [resolution.approval_id]


async def _resolve(tx: Tx, resolution: Resolution, resumer: Resumer) -> None:
    row = await _locked(tx, resolution.approval_id, resumer)
    actor = tx.actor or SYSTEM_ACTOR
    # An assignee is a name that people use, or the id of a token.
    if not resolution.everybody and row.assigned and not {actor, format_actor(actor)} & set(row.assigned):
        raise Forbidden(f"approval {row.id} is for {', '.join(row.assigned)}; an admin may answer it too")
    check_credential(row, resolution.credential)
    check_kind(row, resolution.answer)
    if not row.resolve(EVENTS[resolution.answer], tx.now, resolution.response, format_actor(actor)):
        raise already(row)
    row.responded_with, row.responded_with_id = resolution.credential, resolution.credential_id
    await _resume(tx, row, resumer)
    await audit(tx, resolution.answer + "_approval", [row.id])


async def _locked(tx: Tx, approval_id: str, resumer: Resumer) -> ApprovalRow:
    """Return the approval, locked after its run."""
    unlocked = await get(tx, approval_id)
    if not await resumer.lock(tx, unlocked):
        raise NotFound(f"Workflow run {unlocked.workflow_run_id} not found")
    row = await tx.one(sql.LOCK, id=approval_id)
    if row is None:
        raise not_found(approval_id)
    return row


async def _resume(tx: Tx, row: ApprovalRow, resumer: Resumer) -> None:
    await tx.update_many(sql.MOVE, [row])
    await resumer.resume(tx, row.decision())
    await tell(tx, [row], RESOLVED)


# --- expiry and reminders ---------------------------------------------------------------------------------


async def due_namespaces(tx: Tx) -> list[int]:
    """List the namespaces with due approvals."""
    return await tx.all(sql.DUE_NAMESPACES)


async def until_next(tx: Tx) -> float | None:
    """Return the seconds until an approval is due, or None if there is none."""
    due_at = await tx.one(sql.NEXT_DUE)
    return None if due_at is None else max(to_seconds(due_at - tx.now), 0.0)


async def due(tx: Tx) -> list[str]:
    """List some due approvals."""
    return await tx.all(sql.DUE, n=DUE_ROWS)


async def settle_due(tx: Tx, approval_id: str, resumer: Resumer) -> None:
    """Expire a due approval, or send its reminder. Do nothing if it is no longer due."""
    row = await _locked(tx, approval_id, resumer)
    if row.due_at is None or row.due_at > tx.now:
        return
    if row.expires_at is not None and row.expires_at <= tx.now:
        row.resolve("expired", tx.now, None, None)
        await _resume(tx, row, resumer)
        return
    row.reminders += 1
    row.due_at = next_due(row.expires_at, row.remind_every, tx.now)
    await tx.update_many(sql.MOVE, [row])
    await tell(tx, [row], REMINDER)


async def postpone(tx: Tx, approval_id: str) -> None:
    """Set the due time of an open approval to one minute from now, after its handling failed."""
    row = await tx.one(sql.LOCK, id=approval_id)
    if row is not None and row.open:
        row.due_at = tx.now + POSTPONED
        await tx.update_many(sql.MOVE, [row])


# --- links ------------------------------------------------------------------------------------------------


async def add_links(tx: Tx, links: Sequence[NewLink]) -> list[ApprovalLinkRow]:
    """Store links of one pending approval."""
    assert tx.ns is not None
    (approval_id,) = {link.approval_id for link in links}
    row = await tx.one(sql.LOCK, id=approval_id)
    if row is None:
        raise not_found(approval_id)
    if not row.open:
        raise already(row)
    check_credential(row, "link")
    for link in links:
        if row.assigned and link.assignee not in row.assigned:
            raise Conflict(f"approval {row.id} is for {', '.join(row.assigned)}, not for {link.assignee}")
    count = await tx.one(sql.COUNT_LINKS, approval_id=approval_id) or 0
    if count + len(links) > MAX_LINKS:
        raise Conflict(f"approval {row.id} has {count} links already; the maximum is {MAX_LINKS}")
    rows = [
        ApprovalLinkRow(
            ns=tx.ns,
            id=link.id,
            approval_id=link.approval_id,
            assignee=link.assignee,
            hash=link.hash,
            created_at=tx.wall,
            expires_at=tx.wall + link.lifetime,
            used_at=None,
        )
        for link in links
    ]
    await tx.write(sql.ADD_LINKS.of(rows))
    await audit(tx, "create_approval_link", [link.id for link in rows])
    return rows


async def list_links(tx: Tx, approval_id: str, limit: int, after: str) -> list[ApprovalLinkRow]:
    """List a page of the links of an approval."""
    await get(tx, approval_id)
    return await tx.all(sql.LIST_LINKS, approval_id=approval_id, limit=limit, after=after)


class LinkWithApproval(NamedTuple):
    """A link with its approval, and whether it can still be used."""

    link: ApprovalLinkRow
    approval: ApprovalRow
    is_valid: bool


async def find_link(tx: Tx, token: link_model.LinkToken) -> ApprovalLinkRow | None:
    """Return the link of a token, in any namespace."""
    row = await tx.one(sql.FIND_LINK, id=token.link_id)
    return row if row is not None and link_model.fits(token, row) else None


async def show_link(tx: Tx, link: ApprovalLinkRow) -> LinkWithApproval:
    """Return a link with its approval."""
    row = await get_whole(tx, link.approval_id)
    return LinkWithApproval(link, row, bool(row.open) and link.used_at is None and tx.wall < link.expires_at)


async def resolve_by_link(tx: Tx, link_id: str, resolution: Resolution, resumer: Resumer) -> None:
    """Answer an approval in the name of the link's assignee, and mark the link as used."""
    await _resolve(tx, resolution, resumer)
    link = await tx.one(sql.LOCK_LINK, id=link_id)
    if link is None or link.used_at is not None:
        raise Conflict("this link was used already")
    if tx.wall >= link.expires_at:
        raise Conflict("this link is no longer valid")
    await tx.execute(sql.USE_LINK, id=link_id)


# --- reading ----------------------------------------------------------------------------------------------


async def get(tx: Tx, approval_id: str) -> ApprovalRow:
    """Return an approval without its artifact. Raise NotFound if there is none."""
    row = await tx.one(sql.GET, id=approval_id)
    if row is None:
        raise not_found(approval_id)
    return row


async def get_whole(tx: Tx, approval_id: str) -> ApprovalRow:
    """Return an approval by its id, or by the first digits of its id if they match no other approval."""
    row = await tx.one(sql.GET, id=approval_id) or await _by_prefix(tx, approval_id)
    row.artifact = await tx.one(sql.GET_ARTIFACT, id=row.id)
    return row


async def _by_prefix(tx: Tx, beginning: str) -> ApprovalRow:
    # Ids consist of hexadecimal digits and dashes, which sort before "g".
    rows = await tx.all(sql.BY_PREFIX, first=beginning, last=beginning + "g")
    if len(rows) > 1:
        raise NotFound(f"more than one approval has an id that begins with {beginning}")
    if not rows or not beginning:
        raise not_found(beginning)
    return rows[-1]


async def search(tx: Tx, filters: ApprovalFilter) -> list[ApprovalRow]:
    """List a page of approvals: the open ones first, then the newest first."""
    page = {"limit": filters.limit, **filters.place._asdict()}
    statuses = [filters.status] if filters.status is not None else list(APPROVAL_STATUSES)
    if filters.workflow_run_id is not None:
        run_id = filters.workflow_run_id
        return await tx.all(sql.LIST_BY_RUN, workflow_run_id=run_id, statuses=statuses, **page)
    if filters.trigger_id is not None:
        trigger_id = filters.trigger_id
        return await tx.all(sql.LIST_BY_TRIGGER, trigger_id=trigger_id, statuses=statuses, **page)
    if filters.status is not None:
        page.pop("open")
        return await tx.all(sql.LIST_BY_STATUS, status=filters.status, **page)
    return await tx.all(sql.LIST, **page)


async def newest_open(tx: Tx, trigger_id: str, kinds: Sequence[str]) -> ApprovalRow | None:
    """Return the newest open approval of a trigger, of any of these kinds."""
    return await tx.one(sql.NEWEST_OPEN, trigger_id=trigger_id, kinds=list(kinds))


def not_found(approval_id: str) -> NotFound:
    return NotFound(f"Approval {approval_id} not found")
