"""`Perdure` and `PerdureClient` for programs without `async`: `from perdure.sync import Perdure`."""

from __future__ import annotations

from perdure.runtime.blocking import Perdure as Perdure
from perdure.runtime.blocking import PerdureClient as PerdureClient

__all__ = ["Perdure", "PerdureClient"]
