"""Internal work: functions of the server that are queued, leased and retried as rollouts of kind `job`."""
