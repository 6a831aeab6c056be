"""The Agent-lightning protocol: its wire protocol, its client and its server."""
