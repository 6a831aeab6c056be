"""Approvals: gates at which a run waits for a person, the links that answer them, expiry and reminders."""
