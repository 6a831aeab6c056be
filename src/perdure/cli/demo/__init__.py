"""`perdure demo`: simulated agents that work on a store."""
