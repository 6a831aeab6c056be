"""Hints between callers and processes: something that you wait for may have changed."""
