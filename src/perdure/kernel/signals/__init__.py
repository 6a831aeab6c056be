"""Hints between callers and processes: an awaited object may have changed."""
