"""Retention: deletion by age, and the size of a database."""
