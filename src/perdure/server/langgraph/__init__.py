"""The protocol of the LangGraph server: its routes, bodies, statuses and streams."""
