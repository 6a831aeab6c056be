"""How methods of services are reached over HTTP."""

from __future__ import annotations

PREFIX = "/api/v1"
"""The path under which the native API stands."""
