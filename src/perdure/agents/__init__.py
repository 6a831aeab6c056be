"""Agents: functions, commands, isolated processes, their context, and loading them by configuration."""
