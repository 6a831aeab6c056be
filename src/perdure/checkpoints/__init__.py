"""What LangGraph graphs keep: checkpoints in pieces, so that a thread grows no faster than its state."""
