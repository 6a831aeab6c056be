"""Helpers to test perdure and programs built on it: servers, clocks, faults, the contract suite."""
