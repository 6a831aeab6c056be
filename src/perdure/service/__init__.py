"""What services and operations share: @call, namespace, caller, idempotency key, audit."""
