"""Namespaces: which team or experiment a row belongs to."""
