"""The dashboard: its built files and the login of its users."""
