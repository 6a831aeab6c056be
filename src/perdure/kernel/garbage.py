"""Garbage collection in a server process: objects created at start-up are never scanned again."""

import gc

THRESHOLDS = (20_000, 20, 10)
"""Python's default (700, 10, 10) took 1/8 of a server's CPU; few requests create cycles."""


def settle_garbage_collector(*, collect: bool = True) -> None:
    """Exclude all existing objects from collections, and collect the others less often.

    Without `collect`, garbage of start-up stays too: short-lived processes save the time.
    """
    if collect:
        gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
