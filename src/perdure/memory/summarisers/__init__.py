"""Summarisers: turn events into a title, bullets and keywords, without a model or by an endpoint."""
