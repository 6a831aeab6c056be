"""Why something waits, how full the queues are, and what doctor asks."""
