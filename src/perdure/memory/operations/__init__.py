"""Operations on memory: functions of a transaction."""
