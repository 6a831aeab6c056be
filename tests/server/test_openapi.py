"""The OpenAPI document is committed, and the CHANGELOG names everything that it removes for callers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.regenerate import OPENAPI, openapi

ROOT = Path(__file__).resolve().parents[2]
LAST_RELEASE = ROOT / "tests" / "fixtures" / "openapi-0.5.0.json"
PREFIX = "/api/v1"
Surface = dict[str, dict[str, Any]]
"""The surface for callers: by operation, each parameter and field with its default."""


def surface_of(document: dict[str, Any]) -> Surface:
    """Return the parameters, body fields and response fields of every native operation."""
    return {
        f"{method.upper()} {path}": _fields(document, operation)
        for path, methods in document["paths"].items()
        if path.startswith(PREFIX)
        for method, operation in methods.items()
    }


def _fields(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    found = {
        f"{each['in']} {each['name']}": each["schema"].get("default") for each in operation["parameters"]
    }
    for name, schema in _properties(document, operation.get("requestBody", {})).items():
        found[f"body {name}"] = schema.get("default")
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            found |= dict.fromkeys((f"answer {name}" for name in _properties(document, response)), None)
    return found


def _properties(document: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a body or response that is an object, otherwise none."""
    for content in part.get("content", {}).values():
        schema = content.get("schema", {})
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        properties: dict[str, Any] = schema.get("properties", {})
        return properties
    return {}


def lost_or_changed(before: Surface, after: Surface) -> dict[str, list[str]]:
    """Return the changes that break callers of the last release, by operation."""
    lost: dict[str, list[str]] = {}
    for operation, fields in before.items():
        now = after.get(operation)
        if now is None:
            lost[operation] = ["it is gone"]
            continue
        found = [f"{name} is gone" for name in fields if name not in now]
        found += [
            f"{name} is {now[name]!r} by default, and was {fields[name]!r}"
            for name in fields
            if name in now and (fields[name] or None) != (now[name] or None)
        ]
        if found:
            lost[operation] = found
    return lost


def test_the_committed_document_is_the_one_that_is_served() -> None:
    assert OPENAPI.read_text(encoding="utf-8") == openapi(), "run: python docs/regenerate.py"


def test_what_is_lost_since_the_last_release_stands_in_the_changelog() -> None:
    before: Surface = json.loads(LAST_RELEASE.read_text(encoding="utf-8"))
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    lost = lost_or_changed(before, surface_of(json.loads(openapi())))
    unnamed = {
        operation: changes for operation, changes in lost.items() if operation.split(PREFIX)[1] not in newest
    }
    assert unnamed == {}


def test_a_field_that_goes_is_seen() -> None:
    before: Surface = {"GET /a": {"query limit": 10, "answer items": None}, "GET /b": {}}
    assert lost_or_changed(before, {"GET /a": {"query limit": 100}}) == {
        "GET /a": ["answer items is gone", "query limit is 100 by default, and was 10"],
        "GET /b": ["it is gone"],
    }
