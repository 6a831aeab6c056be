"""What the handlers of assistants, threads and runs share: the rooms of the caller, and terms of searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.assistants.service import Assistants
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import BadQuery, InvalidInput
from perdure.outbox.service import Outbox
from perdure.schedules.service import Schedules
from perdure.server.http.routes import Call
from perdure.threads.service import Threads

MAX_TERMS = 20


def threads_of(call: Call) -> Threads:
    """Threads and runs of the caller's namespace, acting as the caller."""
    return call.services.threads


def assistants_of(call: Call) -> Assistants:
    return call.services.assistants


def schedules_of(call: Call) -> Schedules:
    return call.services.schedules


def outbox_of(call: Call) -> Outbox:
    return call.services.outbox


def metadata_of(terms: Sequence[str] | None) -> dict[str, Any] | None:
    """The metadata that a search asks for."""
    if not terms:
        return None
    metadata: dict[str, Any] = {}
    for term in terms:
        metadata.update(_object(term) if term.startswith("{") else _pair(term))
    if len(metadata) > MAX_TERMS:
        raise BadQuery(f"at most {MAX_TERMS} keys of metadata can be asked for at once")
    return metadata


def _object(term: str) -> dict[str, Any]:
    try:
        found = decode_json(term)
    except InvalidInput as error:
        raise BadQuery(f"metadata: {error.message}") from None
    if not isinstance(found, dict):
        raise BadQuery("metadata must be a JSON object, or key:text")
    return found


def _pair(term: str) -> dict[str, str]:
    key, colon, text = term.partition(":")
    if not colon or not key:
        raise BadQuery(f"metadata {term[:64]!r} must be key:text, or a JSON object")
    return {key: text}
