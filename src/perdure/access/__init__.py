"""Who may do what, and who did what: namespaces, tokens, the audit and idempotency keys."""
