"""The layout of a ReAct agent: state, context, tools and graph in modules of one package."""

from react_agent.graph import graph

__all__ = ["graph"]
