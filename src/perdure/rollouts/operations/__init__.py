"""What changes and reads rollouts: functions of a transaction, each taking lists."""
