"""The server: each protocol parses a request, calls a service, and encodes the answer."""
