"""A definition as YAML, with the lines of each phase.

It is written from what is stored, not from the file: prompts stand in it as texts, and comments are gone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from perdure.workflows.definition import Workflow
from perdure.workflows.records import DefinitionText, PhaseLines


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no aliases, which a loader refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def encode_yaml(workflow: Workflow) -> DefinitionText:
    """A workflow as YAML."""
    fields = msgspec.to_builtins(workflow)
    phases = fields.pop("phases")
    lines = [*_lines({"name": fields.pop("name"), **fields}), "phases:"]
    found: list[PhaseLines] = []
    for phase in phases:
        first = len(lines) + 1
        lines += ["  " + line if line else "" for line in _lines([phase])]
        found.append(PhaseLines(phase=phase["name"], first=first, last=len(lines)))
    return DefinitionText(text="\n".join(lines) + "\n", phases=found)


def _lines(value: Any) -> list[str]:
    written: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written.rstrip("\n").split("\n")
