"""What all doors over HTTP share: the route table, bodies and their bounds, callers, errors, the server."""
