"""Rollouts, attempts, the queue, leases, the watchdog, workers, resources and spans."""
