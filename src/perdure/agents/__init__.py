"""Agents: functions, commands and isolated processes, their context, and their loading."""
