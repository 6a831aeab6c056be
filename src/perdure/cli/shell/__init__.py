"""Shared by commands: options, arguments, output and connections."""
