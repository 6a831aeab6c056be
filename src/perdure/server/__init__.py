"""The doors: they parse what comes, call a room, and encode what it answers."""
