"""Transcripts of agents, in the formats of the tools that write them, as messages of one form."""
