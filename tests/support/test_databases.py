"""Forbidden actions of tests that share a database."""

from __future__ import annotations

import asyncpg
import pytest

MADE = (
    "INSERT INTO tokens (ns, id, name, hash, scopes, namespaces, create_time) "
    "VALUES (1, 't', 't', 'h', '[]', '[]', 0)"
)


async def test_nobody_makes_a_token_where_others_need_none(shared_database_url: str) -> None:
    """After the first token, every caller of the database needs one."""
    connection = await asyncpg.connect(shared_database_url)
    try:
        with pytest.raises(asyncpg.RaiseError, match="a database of its own"):
            await connection.execute(MADE)
    finally:
        await connection.close()
