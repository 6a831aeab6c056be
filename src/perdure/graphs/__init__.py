"""What LangGraph graphs keep: their checkpoints in pieces, so that a growing thread grows no faster than its state."""
