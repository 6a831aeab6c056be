"""Durable effects: what must happen outside after a transaction, at least once."""
