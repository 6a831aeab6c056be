"""Batches of lines for one append, also over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

BATCH_LINES = 500
BATCH_BYTES = 1 << 20


def in_batches(lines: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """Yield batches of lines, each given with its length. A line longer than a batch is sent separately."""
    batch: list[dict[str, Any]] = []
    size = 0
    for length, record in lines:
        if batch and (len(batch) >= BATCH_LINES or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += length
    if batch:
        yield batch
