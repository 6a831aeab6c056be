"""Graphs as people write them, served by a real server and driven by the real client."""
