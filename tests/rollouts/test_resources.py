"""Resources: how they are distinguished, what they refuse, and what a template may reach."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.rollouts.records import Attempt, AttemptedRollout
from perdure.rollouts.resources import (
    LLM,
    PromptTemplate,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    validate_resources,
)


def test_resources_are_told_apart_by_type() -> None:
    dumped = {
        "a": {"resource_type": "llm", "endpoint": "e", "model": "m"},
        "b": {"resource_type": "proxy_llm", "endpoint": "e", "model": "m", "unknown": 1},
        "c": {"resource_type": "prompt_template", "template": "t", "engine": "jinja"},
        "d": LLM(endpoint="e", model="m"),
    }
    made = validate_resources(dumped)
    assert [type(resource) for resource in made.values()] == [LLM, ProxyLLM, PromptTemplate, LLM]
    assert made["d"] is dumped["d"]
    assert decode_json(encode_json(made))["b"]["resource_type"] == "proxy_llm"
    assert validate_resources({}) == {}
    assert all(isinstance(resource, Resource) for resource in made.values())


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ([], "resources must be an object"),
        ({1: {}}, "must be strings"),
        ({"x": 5}, "resource 'x' must be an object"),
        ({"x": {}}, "resource 'x' has an unknown resource_type: None"),
        ({"x": {"resource_type": "bogus"}}, "'bogus'"),
        ({"x": {"resource_type": []}}, "unknown resource_type"),
        ({"x": {"resource_type": "llm", "endpoint": "e"}}, "model"),
        ({"x": {"resource_type": "prompt_template", "template": "t", "engine": "perl"}}, "engine"),
    ],
)
def test_bad_resources_are_refused(obj: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        validate_resources(obj)
    with pytest.raises(InvalidInput, match=f"{message}|ResourcesUpdate.resources"):
        ResourcesUpdate(resources_id="r", create_time=1.0, update_time=1.0, version=1, resources=obj)


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint": 5},
        {"model": None},
        {"api_key": 1},
        {"sampling_parameters": []},
        {"resource_type": "proxy_llm"},
    ],
)
def test_constructors_of_resources_check_every_field(fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"endpoint": "e", "model": "m"}
    with pytest.raises(InvalidInput, match=f"LLM.{next(iter(fields))}"):
        LLM(**given | fields)


def test_an_api_key_is_not_shown() -> None:
    secret = LLM(endpoint="e", model="m", api_key="hush")
    assert "hush" not in repr(secret)
    assert "hush" not in repr(secret.__rich_repr__())
    assert secret.model_dump()["api_key"] == "hush"
    assert "api_key=None" in repr(LLM(endpoint="e", model="m"))


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:1/v1", "http://h:1/rollout/r/attempt/a/v1"),
        ("http://h:1/v1/", "http://h:1/rollout/r/attempt/a/v1"),
        ("http://h:1", "http://h:1/rollout/r/attempt/a"),
        ("http://h:1/", "http://h:1/rollout/r/attempt/a"),
        ("http://h:1/base/v1", "http://h:1/base/rollout/r/attempt/a/v1"),
    ],
)
def test_a_proxy_names_the_attempt_in_the_url(endpoint: str, url: str) -> None:
    proxy = ProxyLLM(endpoint=endpoint, model="m", api_key="k", sampling_parameters={"t": 1})
    assert proxy.get_base_url("r", "a") == url
    assert proxy.get_base_url(None, None) == endpoint
    assert LLM(endpoint=endpoint, model="m").get_base_url("r", "a") == endpoint
    with pytest.raises(ValueError, match="both"):
        proxy.get_base_url("r", None)
    attempt = Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=1.0)
    run = AttemptedRollout(rollout_id="r", input=1, start_time=1.0, attempt=attempt)
    assert proxy.with_attempted_rollout(run) == LLM(
        endpoint=url, model="m", api_key="k", sampling_parameters={"t": 1}
    )


@pytest.mark.parametrize(
    ("template", "values", "text"),
    [
        ("plain", {}, "plain"),
        ("{a} and {b}", {"a": 1, "b": "x"}, "1 and x"),
        ("{{literal}} {a}", {"a": "{b}"}, "{literal} {b}"),
        ("{a!r:>5}|{b:.2f}|{c:04d}", {"a": "x", "b": 1.239, "c": 7}, "  'x'|1.24|0007"),
        ("{a}", {"a": [1], "unused": 2}, "[1]"),
        ("{template}", {"template": 2}, "2"),
    ],
)
def test_f_string_templates(template: str, values: dict[str, Any], text: str) -> None:
    assert PromptTemplate(template=template, engine="f-string").format(**values) == text


@pytest.mark.parametrize(
    "template",
    [
        "{a.__class__}",
        "{a.b}",
        "{a[0]}",
        "{a[b].c}",
        "{}",
        "{0}",
        "{missing}",
        "{a",
        "a}",
        "{a!x}",
        "{a:{b}}",
        "{a:{b.c}}",
        "{a:1000000000}",
        "{a:.99999f}",
        "{a:zz}",
        "{ a }",
    ],
)
def test_f_string_templates_reach_nothing_but_names(template: str) -> None:
    with pytest.raises(InvalidInput):
        PromptTemplate(template=template, engine="f-string").format(a=1, b=2)


def test_a_rendered_prompt_has_a_limit() -> None:
    with pytest.raises(InvalidInput, match="longer than"):
        PromptTemplate(template="{a}" * 2, engine="f-string").format(a="x" * 2**20)


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("jinja2", "jinja2.sandbox"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match="the jinja engine needs the jinja2 package"):
        PromptTemplate(template="<p>{{ a }}</p>", engine="jinja").format(a=1)


def test_a_template_that_is_a_program_is_not_run() -> None:
    with pytest.raises(InvalidInput, match="poml"):
        PromptTemplate(template="<p>{{ a }}</p>", engine="poml").format(a=1)
