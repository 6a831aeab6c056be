"""The client commands, one file a noun."""
