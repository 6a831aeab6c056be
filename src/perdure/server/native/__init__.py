"""perdure's own HTTP API, with health, metrics and the feed of changes."""
