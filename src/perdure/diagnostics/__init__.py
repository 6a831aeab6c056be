"""Diagnostics: why something waits or how it ended, and how full the queues are."""
