"""Hints between callers: who waits for what is told that it may have changed."""
