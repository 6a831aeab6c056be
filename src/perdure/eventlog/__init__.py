"""The event log of agent sessions: append-only JSON lines, in files or in a table."""
