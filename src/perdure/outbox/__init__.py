"""Durable effects: actions outside the database that must happen after a transaction, at least once."""
