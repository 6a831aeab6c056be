"""`Perdure` and `PerdureClient` for programs without `async`: `from perdure.sync import Perdure`."""

from __future__ import annotations

from perdure.embedding.blocking import Perdure as Perdure
from perdure.embedding.blocking import PerdureClient as PerdureClient

__all__ = ["Perdure", "PerdureClient"]
