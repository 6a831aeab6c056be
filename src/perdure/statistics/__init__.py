"""What is known of the past: the queues by the minute, and what agents used by the hour."""
