"""Agent sessions: logs of the messages and tool calls of agents, written and read."""
