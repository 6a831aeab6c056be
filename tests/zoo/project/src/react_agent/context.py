"""What can be configured, with defaults that the environment may replace."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Annotated


@dataclass(kw_only=True)
class Context:
    system_prompt: str = field(default="You help.", metadata={"description": "The first message."})
    model: Annotated[str, {"kind": "model"}] = field(default="scripted/small")
    max_search_results: int = field(default=10)

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.init and getattr(self, each.name) == each.default:
                setattr(self, each.name, os.environ.get(each.name.upper(), each.default))
