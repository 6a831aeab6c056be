"""Operations on workflow runs, approvals and overrides."""
