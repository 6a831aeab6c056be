"""Clients of a perdure server: sessions, retries, streams; the native and the Lightning client."""
