"""Traces: the list of traces, their outline and their messages."""
