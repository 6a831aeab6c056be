"""What changes and reads the rollouts room: functions of a transaction, each taking lists."""
