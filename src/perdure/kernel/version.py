"""Version of perdure."""

VERSION = "0.6.0"
