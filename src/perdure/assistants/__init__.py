"""Agents by name, with their versions and configuration."""
