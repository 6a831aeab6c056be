"""Transcripts of agents, converted from the formats of their tools to messages of one form."""
