"""The commands that host something: serve, dev, worker, store, doctor."""
