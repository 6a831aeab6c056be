"""Checkpoints of LangGraph graphs, stored in pieces, so that a thread grows no faster than its state."""
