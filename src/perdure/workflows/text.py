"""A definition as YAML, with the lines of each phase.

The text is generated from what is stored, not from the file: prompts are inline, and comments are lost.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from perdure.workflows.definition import Workflow
from perdure.workflows.records import DefinitionText, PhaseLines


class _Dumper(yaml.SafeDumper):
    """YAML dumper: texts of several lines are blocks, and aliases, which a loader refuses, are not used."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def encode_yaml(workflow: Workflow) -> DefinitionText:
    """Encode a workflow as YAML."""
    fields = msgspec.to_builtins(workflow)
    phases = fields.pop("phases")
    lines = [*_lines({"name": fields.pop("name"), **fields}), "phases:"]
    ranges: list[PhaseLines] = []
    for phase in phases:
        first = len(lines) + 1
        lines += ["  " + line if line else "" for line in _lines([phase])]
        ranges.append(PhaseLines(phase=phase["name"], first=first, last=len(lines)))
    return DefinitionText(text="\n".join(lines) + "\n", phases=ranges)


def _lines(value: Any) -> list[str]:
    written: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written.rstrip("\n").split("\n")
