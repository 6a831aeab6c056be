"""Operations on threads and runs. Each is a function of a transaction."""
