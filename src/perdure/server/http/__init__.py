"""What all protocols share: routes, bodies and their bounds, callers, errors, the HTTP server."""
