"""Threads, their runs, and the checkpoints between them."""
