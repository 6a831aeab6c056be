"""The layout of a new project: a graph in a package below `src`, which its `__init__` exports."""

from agent.graph import graph

__all__ = ["graph"]
