"""Operations of a worker on its runs."""
