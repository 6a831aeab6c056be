"""What can be configured by `configurable`, as it was done before there were contexts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from langchain_core.runnables import RunnableConfig, ensure_config


@dataclass(kw_only=True)
class Configuration:
    user_id: str = ""
    prefix: str = "docs"

    @classmethod
    def from_runnable_config(cls, config: RunnableConfig | None = None) -> Configuration:
        given: dict[str, Any] = ensure_config(config).get("configurable") or {}
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})
