"""What happened: events of agents in order of their time, a table of contents over them, and their search."""
