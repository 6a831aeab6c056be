"""The table of the native door."""

from __future__ import annotations

from perdure.protocols.http.routes import Route

ROUTES: tuple[Route, ...] = ()
