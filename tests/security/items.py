"""Requests to every route that writes items, and what the audit calls each."""

from __future__ import annotations

from typing import Any

from tests.security.runs import API, WORK, Line


def item_lines() -> list[Line]:
    """With whole paths, of the native door and of LangGraph's."""
    item: dict[str, Any] = {"namespace": ["a", "b"], "key": "k", "value": {"n": 1}}
    name = {"namespace": ["a", "b"], "key": "k"}
    ops = {"ops": [{"op": "put", **item}]}
    return [
        ("PUT", API + "/items", "", item, "put_items"),
        ("DELETE", API + "/items", f"{API}/items?namespace=a.b&key=k", None, "delete_items"),
        ("POST", API + "/items/batch", "", ops, "put_items"),
        ("POST", f"{API}{WORK}/items", "", {"ops": [{"op": "delete", **name}]}, "delete_items"),
        ("PUT", "/store/items", "", item, "put_items"),
        ("DELETE", "/store/items", "", name, "delete_items"),
    ]
