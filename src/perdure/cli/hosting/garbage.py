"""The garbage collector of a process that serves: what start-up made is never looked at again."""

import gc

THRESHOLDS = (20_000, 20, 10)
"""Python's own (700, 10, 10) cost a server an eighth of its CPU; few requests make cycles."""


def settle_garbage_collector() -> None:
    """Exclude all objects that exist now from collections, and collect the others less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
