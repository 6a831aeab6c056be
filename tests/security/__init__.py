"""The promises of SECURITY.md; what holds for every route walks the table."""
