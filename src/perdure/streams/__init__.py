"""Ordered, resumable streams of events."""
