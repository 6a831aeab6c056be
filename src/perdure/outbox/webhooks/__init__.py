"""Webhooks: signing, sending, and verification by the receiver.

A receiver needs only `verify`, which takes the raw body, the headers and the shared secret.
"""

from perdure.outbox.webhooks.signing import InvalidSignature as InvalidSignature
from perdure.outbox.webhooks.signing import verify as verify

__all__ = ["InvalidSignature", "verify"]
