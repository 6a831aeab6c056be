"""Workflows: phases that depend on each other, in YAML files."""
