"""Send approval webhooks: requests, reminders and resolutions."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from perdure.approvals import link_model, model, operations
from perdure.approvals.gates import CONSUMER, RESOLVED
from perdure.approvals.model import Approval
from perdure.approvals.service import build_link_path, new_links
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Storage
from perdure.outbox.model import Consumer, DeliveryPolicy, Effect, Undeliverable


class _Notice(msgspec.Struct):
    """Content of the outbox about an approval: the event, and the id of its namespace."""

    event: str
    ns: int


class ApprovalNotices:
    """Outbox consumer that sends events of approvals to one URL, with links for their assignees.

    Without a URL nothing is sent. Links are added to pending approvals and need the address of this server,
    `public_url`. A notice that is sent again has the same id and new secrets in its links: the earlier links
    no longer work.
    """

    name = CONSUMER
    policy = DeliveryPolicy()

    def __init__(
        self, storage: Storage, sender: Consumer | None, *, url: str | None, public_url: str | None
    ) -> None:
        self._storage = storage
        self._sender = sender
        self._url = url
        self._public_url = public_url

    async def deliver(self, effect: Effect) -> None:
        """Send one notice as a webhook."""
        if self._url is None or self._sender is None:
            return
        try:
            notice = msgspec.convert(decode_json(effect.body), _Notice)
            row = await self._storage.read(operations.get_whole, effect.subject, ns=notice.ns)
        except (msgspec.ValidationError, NotFound) as error:
            raise Undeliverable(f"the notice cannot be read: {error}") from error
        approval = model.row_to_approval(row)
        payload: dict[str, Any] = {"event": notice.event, "approval": approval.model_dump()}
        if notice.event != RESOLVED:
            payload["links"] = await self._links(effect.id, approval, notice.ns)
        body = encode_json({"url": self._url, "payload": payload}, what="notice")
        await self._sender.deliver(msgspec.structs.replace(effect, body=body))

    async def _links(self, effect_id: str, approval: Approval, ns: int) -> list[dict[str, Any]]:
        """Create a link for each assignee; none if the approval was resolved meanwhile."""
        if self._public_url is None or not approval.assignees:
            return []
        if approval.answer_by and "link" not in approval.answer_by:
            return []
        assignees = {_link_id(effect_id, name): name for name in approval.assignees}
        new, secrets = new_links(approval.approval_id, assignees)
        try:
            rows = await self._storage.run(operations.add_links, new, ns=ns)
        except Conflict:
            return []
        return [
            {
                **link_model.row_to_approval_link(row).model_dump(),
                "url": self._public_url + build_link_path(row, secrets),
            }
            for row in rows
        ]


def _link_id(effect_id: str, assignee: str) -> str:
    """Return an id that is the same for each delivery of a notice to an assignee."""
    return sha256(f"{effect_id}/{assignee}".encode()).hexdigest()[: link_model.ID_DIGITS]
