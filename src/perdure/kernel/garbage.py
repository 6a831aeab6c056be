"""The garbage collector of a process that serves: what start-up made is never looked at again."""

import gc

THRESHOLDS = (20_000, 20, 10)
"""Python's own (700, 10, 10) cost a server an eighth of its CPU; few requests make cycles."""


def settle_garbage_collector(*, collect: bool = True) -> None:
    """Exclude all objects that exist now from collections, and collect the others less often.

    Without `collect` what start-up left behind stays too: a process that lives shortly need not look for it.
    """
    if collect:
        gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
