"""Imports from other systems into a perdure database; existing data stays unchanged."""
