"""Internal work: functions of the server that are enqueued, leased and retried as rollouts of kind `job`."""
