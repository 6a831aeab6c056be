"""Links that decide an approval: their secrets, and when they are valid. Everything here is pure."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import NamedTuple

from perdure.approvals.model import ApprovalLink
from perdure.kernel.clock import to_iso, to_iso_or_none

PATH = "/approve/"
"""The path of the page of a link, before its token."""
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
    """A link to be stored: of its secret only the hash is here."""

    id: str
    approval_id: str
    assignee: str
    hash: str
    lifetime: int


class LinkToken(NamedTuple):
    """What the path of a link holds: which link it is, and the hash of its secret."""

    link_id: str
    hash: str


def encode_link_token(link_id: str, secret: str) -> str:
    """The token of a link, as it stands in the path."""
    return f"{link_id}-{secret}"


def parse_link_token(text: str) -> LinkToken | None:
    """A token that was given, or None if it is not one of ours."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else LinkToken(found[1], hash_link_secret(found[2]))


def hash_link_secret(secret: str) -> str:
    """What is stored of a secret."""
    return sha256(secret.encode()).hexdigest()


def fits(token: LinkToken, row: ApprovalLinkRow) -> bool:
    """Whether a token is that of a link; the time it takes tells nothing."""
    return hmac.compare_digest(token.hash.encode(), row.hash.encode())


def row_to_approval_link(row: ApprovalLinkRow) -> ApprovalLink:
    """The record of a link."""
    return ApprovalLink(
        link_id=row.id,
        approval_id=row.approval_id,
        assignee=row.assignee,
        created_at=to_iso(row.created_at),
        expires_at=to_iso(row.expires_at),
        used_at=to_iso_or_none(row.used_at),
    )
