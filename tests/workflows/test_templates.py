"""Templates: one pass, values stay values, and mistakes are found when they are parsed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInput, TooLarge
from perdure.workflows.templates import HELPERS, parse, slugify

SCOPE = {
    "title": "Fix the Cart!",
    "n": 7,
    "flag": False,
    "zero": 0,
    "none": None,
    "items": [1, {"a": "b"}],
    "object": {"x": 1},
    "empty-object": {},
    "a": {"b-c": {"d": "deep"}},
    "phaseOutputs": {"plan": "the plan", "hostile": "{{secret}} ${plan.output} {{#if n}}"},
    "secret": "hunter2",
}

RENDERED = {
    "plain": "plain",
    "{{title}}": "Fix the Cart!",
    "{{ title }}": "Fix the Cart!",
    "{{a.b-c.d}}": "deep",
    "{{items.1.a}}": "b",
    "{{n}}{{zero}}": "70",
    "[{{missing}}{{none}}{{a.missing.b}}]": "[]",
    "{{object}}": '{"x":1}',
    "{{items}}": '[1,{"a":"b"}]',
    "{{flag}}": "false",
    "{{plan}}": "the plan",
    "{{phaseOutputs.plan}}": "the plan",
    "${plan.output}": "the plan",
    "${unknown.output}": "",
    "$PLAIN ${HOME}": "$PLAIN ${HOME}",
    "{{slugify title}}": "fix-the-cart",
    "{{slugify missing}}": "",
    "{{#if n}}yes{{/if}}": "yes",
    "{{#if !n}}yes{{/if}}": "",
    "{{#if zero}}yes{{/if}}": "",
    "{{#if ! missing}}none{{/if}}": "none",
    "{{#if n}}a{{#if title}}b{{title}}{{/if}}c{{/if}}d": "abFix the Cart!cd",
    "{{#if n}}\n{{title}}\n{{/if}}": "\nFix the Cart!\n",
    "{{artifactUrl plan.md}}": "",
}
WRONG = {
    "{{}}": "names nothing",
    "{{ }}": "names nothing",
    "{{a b c}}": "names nothing",
    "{{a.}}": "names nothing",
    "{{1a}}": "names nothing",
    "{{a + b}}": "names nothing",
    "x\n{{a()}}": "line 2",
    "{{#if a}}": "without",
    "{{/if}}": "without",
    "{{#if}}x{{/if}}": "names nothing",
    "{{#if a}}" * 12 + "{{/if}}" * 12: "nested deeper",
    "x" * (300 << 10): "at most",
}


def test_what_is_rendered() -> None:
    for text, expected in RENDERED.items():
        assert parse(text).render(SCOPE) == expected, text


def test_what_an_agent_wrote_is_never_a_template() -> None:
    hostile = str(SCOPE["phaseOutputs"]["hostile"])  # type: ignore[index]
    for text in ("{{hostile}}", "${hostile.output}", "{{#if n}}{{hostile}}{{/if}}"):
        assert parse(text).render(SCOPE) == hostile


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_value_comes_out_as_it_went_in(value: str, other: str) -> None:
    template = parse("<{{a}}|${b.output}>")
    assert template.render({"a": value, "phaseOutputs": {"b": other}}) == f"<{value}|{other}>"


@given(st.text(alphabet="{}$#/if !ab.\n", max_size=40))
def test_every_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        parse(text).render(SCOPE)


def test_a_mistake_is_found_when_the_template_is_parsed() -> None:
    for text, reason in WRONG.items():
        with pytest.raises(InvalidInput, match=reason):
            parse(text)


def test_what_is_rendered_is_bounded() -> None:
    with pytest.raises(TooLarge):
        parse("{{a}}" * 20).render({"a": "x" * 100_000})


def test_helpers_and_literals_are_told() -> None:
    assert parse("{{artifactUrl x.md}}{{#if a}}{{slugify a}}{{/if}}").helpers() == {"artifactUrl", *HELPERS}
    assert parse("echo $HOME").is_literal
    assert not parse("echo {{a}}").is_literal
    assert slugify("  Ünïcode & " + "long " * 20) == "n-code-long-long-long-long-long-long-lon"
