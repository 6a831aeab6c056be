"""Operations on workflow runs, their nodes and overrides."""
