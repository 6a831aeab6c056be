"""Operations on rollouts: functions of a transaction that take lists."""
