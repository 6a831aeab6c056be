"""The storage port and its two drivers."""
