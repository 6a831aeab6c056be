"""The dashboard: its files as they were built, and the login of those who use it."""
