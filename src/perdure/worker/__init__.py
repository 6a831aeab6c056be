"""Execution of runs: the worker, one execution, the emitter, isolated processes."""
