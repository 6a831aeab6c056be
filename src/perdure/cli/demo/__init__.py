"""The demo: a server and agents at work on it."""
