"""Basics used by every domain; the kernel knows no domain."""
