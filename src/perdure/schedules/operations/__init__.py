"""Operations on schedules. Rows of schedules are locked before all others."""
