"""Agent sessions: what agents said and did, as it is logged and as it is read."""
