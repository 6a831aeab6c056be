"""The layout of a memory agent: tools write to the store of the user whom the context names."""
