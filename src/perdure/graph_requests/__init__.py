"""Requests that need the code of a graph, answered by a worker that has it."""
