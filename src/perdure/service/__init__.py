"""Shared by services and operations: @call, namespace, caller, idempotency key, audit."""
