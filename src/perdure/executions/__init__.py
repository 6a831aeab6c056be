"""Executions: one row for each attempt of a phase or chat turn, with its cost, its session and its output."""
