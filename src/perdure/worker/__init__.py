"""Who executes runs: the worker, one execution, the emitter, isolated processes."""
