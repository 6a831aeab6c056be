"""Commands that run a process: serve, dev, worker, store; and doctor and agents, which check its settings."""
