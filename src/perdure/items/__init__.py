"""What agents remember beyond a thread: values by namespace and key."""
