"""What tests of imports share."""

from __future__ import annotations

import pytest
from tests.support.databases import Databases


@pytest.fixture
def other_database_url(postgres_server_url: str, databases: Databases) -> str:
    """The URL of a PostgreSQL database for another program, without tables."""
    return databases.blank(postgres_server_url)
