"""Statistics: the queues by the minute, and the usage of agents by the hour."""
