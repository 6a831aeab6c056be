"""The unmodified client of `agentlightning` against a perdure server; `./dev conformance` runs it."""
