"""The Agent-lightning protocol over HTTP."""
