"""Webhooks: how they are signed and sent, and how a receiver verifies them.

A receiver needs `verify` alone, which takes the body as it came, the headers and the shared secret.
"""

from perdure.outbox.webhooks.signing import InvalidSignature as InvalidSignature
from perdure.outbox.webhooks.signing import verify as verify

__all__ = ["InvalidSignature", "verify"]
