"""Schedules: each due time fires once, also with several processes."""
