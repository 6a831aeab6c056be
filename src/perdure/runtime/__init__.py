"""Where the domains are wired together."""
