"""The protocol of LangGraph's server: routes, bodies, statuses and streams."""
