"""Signatures of webhooks, in the form of Standard Webhooks, for sender and receiver.

The signed text is `<webhook-id>.<webhook-timestamp>.<body>`. The HMAC-SHA256 is sent twice: in base64 as
`webhook-signature: v1,<base64>`, and in hexadecimal as `X-Perdure-Signature: t=<timestamp>,v1=<hex>`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
OWN_HEADER = "X-Perdure-Signature"
SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of such secrets
VERSION = "v1"
TOLERANCE_SECONDS = 300.0


class InvalidSignature(InvalidInput):
    """The webhook was not signed with this secret, or not recently."""

    code = "invalid_signature"
    http_status = 401


def key_of(secret: str) -> bytes:
    """Return the key of a secret: decoded after `whsec_`, otherwise the text itself."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidInput(f"after {SECRET_PREFIX} a webhook secret must be base64") from None


def signed_headers(key: bytes | None, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Build the headers of one delivery; without a key it is not signed."""
    headers = {ID_HEADER: delivery_id, TIMESTAMP_HEADER: str(timestamp)}
    if key is not None:
        digest = _compute_digest(key, delivery_id, str(timestamp), body)
        headers[SIGNATURE_HEADER] = VERSION + "," + base64.b64encode(digest).decode()
        headers[OWN_HEADER] = f"t={timestamp},{VERSION}={digest.hex()}"
    return headers


def verify(
    payload: bytes | str,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    tolerance: float = TOLERANCE_SECONDS,
    *,
    now: float | None = None,
) -> Any:
    """Return the content of a received webhook; InvalidSignature if its signature is not valid.

    `payload` is the raw body, before any JSON parser. `secret` is the sender's `webhook_secret`; during a
    rotation, pass the old and the new one. A webhook whose timestamp is more than `tolerance` seconds from
    `now` is refused, so that it cannot be replayed later. The sender may repeat a delivery: ignore a
    `webhook-id` that was handled before.
    """
    body = payload.encode() if isinstance(payload, str) else payload
    values = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER) if not values.get(name)]
    if missing:
        raise InvalidSignature(f"the webhook has no header {missing[0]}")
    timestamp = values[TIMESTAMP_HEADER]
    _check_age(timestamp, time.time() if now is None else now, tolerance)
    secrets = [secret] if isinstance(secret, str) else list(secret)
    digests = [_compute_digest(key_of(key), values[ID_HEADER], timestamp, body) for key in secrets]
    if not _matches_any(values[SIGNATURE_HEADER], digests):
        raise InvalidSignature()
    return decode_json(body)


def _compute_digest(key: bytes, delivery_id: str, timestamp: str, body: bytes) -> bytes:
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    return hmac.digest(key, signed, "sha256")


def _check_age(timestamp: str, now: float, tolerance: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise InvalidSignature(f"{TIMESTAMP_HEADER} must be a number of seconds")
    if abs(now - int(timestamp)) > tolerance:
        raise InvalidSignature(f"the webhook was signed more than {tolerance:g} s before or after now")


def _matches_any(signatures: str, digests: Sequence[bytes]) -> bool:
    """Compare every signature with every digest, in constant time."""
    fits = False
    for signature in signatures.split():
        version, _, text = signature.partition(",")
        for digest in digests:
            expected = base64.b64encode(digest)
            fits |= hmac.compare_digest(text.encode(), expected) and version == VERSION
    return fits
