"""Assistants: agents by name, with versions and configuration."""
