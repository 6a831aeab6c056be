"""Shared by all protocols: routes, bodies and their limits, callers, errors, the HTTP server."""
