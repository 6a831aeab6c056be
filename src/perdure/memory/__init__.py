"""Memory: events of agents in order of time, a table of contents over them, and their search."""
