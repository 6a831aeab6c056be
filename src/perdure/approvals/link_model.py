"""Links that decide an approval: tokens, secrets and rows. Everything here is pure."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import NamedTuple

from perdure.approvals.model import ApprovalLink
from perdure.kernel.clock import to_iso, to_iso_or_none

PATH = "/approve/"
"""Path of the page of a link, before its token."""
ID_DIGITS = 24
_TOKEN = re.compile(r"([0-9a-f]{24})-([A-Za-z0-9_-]{43})")


class ApprovalLinkRow(NamedTuple):
    """A row of `approval_links`."""

    ns: int
    id: str
    approval_id: str
    assignee: str
    hash: str
    created_at: int
    expires_at: int
    used_at: int | None


class NewLink(NamedTuple):
    """A link to store, with the hash of its secret."""

    id: str
    approval_id: str
    assignee: str
    hash: str
    lifetime: int


class LinkToken(NamedTuple):
    """Parsed token of a link: its id, and the hash of its secret."""

    link_id: str
    hash: str


def encode_link_token(link_id: str, secret: str) -> str:
    """Encode the token of a link for its path."""
    return f"{link_id}-{secret}"


def parse_link_token(text: str) -> LinkToken | None:
    """Parse a token. Return None if it is malformed."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else LinkToken(match[1], hash_link_secret(match[2]))


def hash_link_secret(secret: str) -> str:
    """Return the hash of a secret, which is stored in its place."""
    return sha256(secret.encode()).hexdigest()


def fits(token: LinkToken, row: ApprovalLinkRow) -> bool:
    """Return whether a token belongs to a link, in constant time."""
    return hmac.compare_digest(token.hash.encode(), row.hash.encode())


def row_to_approval_link(row: ApprovalLinkRow) -> ApprovalLink:
    """Convert a row to the record of a link."""
    return ApprovalLink(
        link_id=row.id,
        approval_id=row.approval_id,
        assignee=row.assignee,
        created_at=to_iso(row.created_at),
        expires_at=to_iso(row.expires_at),
        used_at=to_iso_or_none(row.used_at),
    )
