"""Helpers for the tests of the PostgreSQL driver."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kernel.support import NS, THINGS, put, soon

from perdure.kernel.errors import PerdureError
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Row
from perdure.kernel.storage.postgres import PostgresStorage


def sql(text: str, *names: str) -> Statement[Row]:
    return Statement(text, text, names, frozenset())


def opened(url: str, **options: Any) -> PostgresStorage:
    return PostgresStorage(url, [THINGS], **{"timeout": 20.0, **options})


async def refusal(url: str, **options: Any) -> PerdureError:
    """Return the result of the first call."""
    storage = opened(url, **options)
    try:
        with pytest.raises(PerdureError) as refused:
            await soon(storage.run(put, "a", ns=NS))
        return refused.value
    finally:
        await soon(storage.close())
