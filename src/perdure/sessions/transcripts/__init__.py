"""Transcripts of agents, converted from the formats of several tools to messages of one form."""
