"""Where the rooms are wired together."""
