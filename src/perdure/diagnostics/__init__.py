"""Why something is waiting or how it ended, and how full the queues are."""
