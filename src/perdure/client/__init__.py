"""Clients of a perdure server: sessions, retries, streams; the native and the Agent-lightning client."""
