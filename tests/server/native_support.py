"""What the tests of the native door share."""

from __future__ import annotations

from typing import Any

from perdure.kernel.config import Key

API = "/api/v1"
KEY = Key("a-key-of-some-length")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def own_span(claimed: Any, number: int, **fields: Any) -> dict[str, Any]:
    return {
        "rollout_id": claimed["rollout_id"],
        "attempt_id": claimed["attempt"]["attempt_id"],
        "sequence_id": number,
        "trace_id": f"{1:032x}",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": f"step {number}",
        "status": {"status_code": "OK", "description": None},
        "attributes": {},
        "events": [],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "context": None,
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    } | fields
