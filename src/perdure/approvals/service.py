"""Service of the approvals of one namespace, and of links to them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, get_args

from msgspec import Meta, structs

from perdure.approvals import link_model, model, operations
from perdure.approvals.link_model import ApprovalLinkRow, LinkToken, NewLink
from perdure.approvals.model import (
    APPROVAL_KINDS,
    LINK_SECONDS,
    MAX_LINK_SECONDS,
    MAX_NAME,
    Answer,
    Approval,
    ApprovalFilter,
    ApprovalKind,
    ApprovalLink,
    ApprovalStatus,
    CreatedLink,
    Resolution,
    Resumer,
)
from perdure.approvals.operations import LinkWithApproval
from perdure.kernel.checks import Id, Limit, check_id, check_name, check_page, optional_choice, optional_id
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from perdure.kernel.merge import BATCH_ROWS
from perdure.kernel.pages import Part
from perdure.kernel.storage.port import Storage
from perdure.service.base import Service
from perdure.service.callers import ADMIN, Actor, Caller
from perdure.service.endpoints import GET, POST, call

Links = list[ApprovalLink]
LinkSeconds = Annotated[float, Meta(gt=0, le=MAX_LINK_SECONDS)]


class Approvals(Service):
    """The approvals of one namespace. An approval is answered once; a second answer is a conflict."""

    def __init__(
        self,
        storage: Storage,
        resumer: Resumer,
        *,
        public_url: str | None = None,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.resumer = resumer
        self.public_url = public_url

    @call(GET("/approvals"), scope="read")
    async def list(
        self,
        *,
        status: ApprovalStatus | None = None,
        workflow_run_id: Id | None = None,
        trigger_id: str | None = None,
        limit: Limit = 100,
        cursor: str | None = None,
    ) -> Part[Approval]:
        """List approvals: the pending ones first, then the newest first.

        `trigger_id` is what started the workflow run, such as `owner/repo#7`. `next` of a page is the cursor
        of the next one.
        """
        request = model.APPROVALS.open_part(limit, cursor)
        if workflow_run_id is not None and trigger_id is not None:
            raise InvalidInput("filter by workflow_run_id or by trigger_id, not by both")
        filters = ApprovalFilter(
            status=optional_choice(status, get_args(ApprovalStatus), "status"),
            workflow_run_id=optional_id(workflow_run_id, "workflow_run_id"),
            trigger_id=optional_id(trigger_id, "trigger_id"),
            place=request.place,
            limit=request.rows,
        )
        return request.build_part(await self.read(operations.search, filters), model.row_to_approval)

    @call(GET("/approvals/pending"), scope="read", errors=(NotFound,))
    async def pending(self, trigger_id: str, *, kind: ApprovalKind | None = None) -> Approval:
        """Get the newest pending approval of a trigger, such as the one that a reply in a chat answers."""
        trigger = check_id(trigger_id, "trigger_id")
        chosen = optional_choice(kind, APPROVAL_KINDS, "kind")
        kinds = APPROVAL_KINDS if chosen is None else (chosen,)
        row = await self.read(operations.newest_open, trigger, kinds)
        if row is None:
            raise NotFound(f"trigger {trigger} has no pending approval")
        return model.row_to_approval(row)

    @call(GET("/approvals/{approval_id}"), scope="read", errors=(NotFound,))
    async def get(self, approval_id: Id) -> Approval:
        """Get an approval by its id, or by the first digits of its id if they match no other approval."""
        return model.row_to_approval(
            await self.read(operations.get_whole, check_id(approval_id, "approval_id"))
        )

    # --- answering --------------------------------------------------------------------------------------

    @call(POST("/approvals/{approval_id}/approve"), scope="write", errors=(NotFound, Conflict, Forbidden))
    async def approve(
        self, approval_id: Id, *, comment: str | None = None, idempotency_key: str | None = None
    ) -> Approval:
        """Approve: the run continues. The caller is recorded."""
        return await self._resolve(approval_id, "approve", comment, idempotency_key)

    @call(POST("/approvals/{approval_id}/reject"), scope="write", errors=(NotFound, Conflict, Forbidden))
    async def reject(
        self, approval_id: Id, *, reason: str | None = None, idempotency_key: str | None = None
    ) -> Approval:
        """Reject: the run fails, with the reason in its error."""
        return await self._resolve(approval_id, "reject", reason, idempotency_key)

    @call(POST("/approvals/{approval_id}/reply"), scope="write", errors=(NotFound, Conflict, Forbidden))
    async def reply(self, approval_id: Id, text: str, *, idempotency_key: str | None = None) -> Approval:
        """Answer an approval that asks for a reply: the run continues with the text."""
        return await self._resolve(approval_id, "reply", text, idempotency_key)

    async def _resolve(self, approval_id: str, answer: Answer, text: object, key: str | None) -> Approval:
        caller = self.caller
        credential = None if caller is None else caller.credential
        has_id = caller is not None and isinstance(caller.actor, Actor) and credential is not None
        resolution = Resolution(
            check_id(approval_id, "approval_id"),
            answer,
            model.check_response(text, answer),
            everybody=caller is None or ADMIN in caller.scopes,
            credential=credential,
            credential_id=str(caller.actor) if caller is not None and has_id else None,
        )
        resolved: str = await self.write_once(
            key, operations.resolve, resolution, self.resumer, rows=BATCH_ROWS
        )
        return await self.get(resolved)

    # --- links ------------------------------------------------------------------------------------------

    @call(GET("/approvals/{approval_id}/links"), scope="read", errors=(NotFound,))
    async def links(self, approval_id: Id, *, limit: Limit = 100, after: str = "") -> Links:
        """List the links of an approval without secrets; `after` is the last id of the previous page."""
        check_page(limit)
        checked = check_id(approval_id, "approval_id")
        rows = await self.read(operations.list_links, checked, limit, check_id(after, "after"))
        return [link_model.row_to_approval_link(row) for row in rows]

    @call(
        POST("/approvals/{approval_id}/links"),
        scope="admin",
        status=201,
        errors=(NotFound, Conflict, Forbidden),
    )
    async def create_link(
        self, approval_id: Id, assignee: str, *, expires_in: LinkSeconds = LINK_SECONDS
    ) -> CreatedLink:
        """Create a link with which an assignee answers once, without a token.

        The secret is shown only in this answer. A holder of the link acts in the assignee's name, so the call
        needs the scope `admin`.
        """
        if isinstance(expires_in, bool) or not 0 < expires_in <= MAX_LINK_SECONDS:
            raise InvalidInput(
                f"expires_in is {expires_in!r}; it must be up to {MAX_LINK_SECONDS:.0f} seconds"
            )
        checked = check_id(approval_id, "approval_id")
        link_id = self.storage.ids.hex(link_model.ID_DIGITS)
        new, link_secrets = new_links(checked, {link_id: assignee}, expires_in)
        (row,) = await self.write(operations.add_links, new)
        path = build_link_path(row, link_secrets)
        url = None if self.public_url is None else self.public_url + path
        return CreatedLink(**structs.asdict(link_model.row_to_approval_link(row)), path=path, url=url)


def new_links(
    approval_id: str, assignees: Mapping[str, str], expires_in: float = LINK_SECONDS
) -> tuple[Sequence[NewLink], Mapping[str, str]]:
    """Build links for assignees by link id. Return them and their secrets, which are not stored."""
    link_secrets = {link_id: secrets.token_urlsafe(32) for link_id in assignees}
    new = [
        NewLink(
            link_id,
            approval_id,
            check_name(assignee, "assignee", max_length=MAX_NAME),
            link_model.hash_link_secret(link_secrets[link_id]),
            to_micros(expires_in),
        )
        for link_id, assignee in assignees.items()
    ]
    return new, link_secrets


def build_link_path(row: ApprovalLinkRow, link_secrets: Mapping[str, str]) -> str:
    """Build the path of a link, with its secret."""
    return link_model.PATH + link_model.encode_link_token(row.id, link_secrets[row.id])


class LinkedApprovals:
    """Access of a link to its approval, in any namespace, and to nothing else."""

    def __init__(self, storage: Storage, resumer: Resumer) -> None:
        self._storage = storage
        self._resumer = resumer

    async def find(self, token: LinkToken) -> LinkWithApproval | None:
        """Return the link of a token with its approval, or None if there is none."""
        link = await self._storage.read(operations.find_link, token)
        if link is None:
            return None
        return await self._storage.read(operations.show_link, link, ns=link.ns)

    async def answer(self, token: LinkToken, answer: Answer, text: object) -> LinkWithApproval:
        """Answer in the name of the link's assignee, and mark the link as used."""
        link = await self._storage.read(operations.find_link, token)
        if link is None:
            raise NotFound("this link does not exist")
        resolution = Resolution(
            link.approval_id,
            answer,
            model.check_response(text, answer),
            credential="link",
            credential_id=link.id,
        )
        await self._storage.run(
            operations.resolve_by_link, link.id, resolution, self._resumer, ns=link.ns, actor=link.assignee
        )
        answered = await self.find(token)
        assert answered is not None
        return answered
