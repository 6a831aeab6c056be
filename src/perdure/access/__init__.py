"""Access control and its record: namespaces, tokens, logins, the audit and idempotency keys."""
