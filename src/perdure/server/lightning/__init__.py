"""The Agent-lightning door: its wire protocol, its client and its server."""
