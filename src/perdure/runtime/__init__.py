"""Wiring of all domains."""
