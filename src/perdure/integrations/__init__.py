"""Integrations that run inside other programs."""
