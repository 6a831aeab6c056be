"""Templates: one pass, values stay values, and mistakes are found when they are parsed."""

from __future__ import annotations

import contextlib
import sys
from time import process_time
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInput, TooLarge
from perdure.workflows.templates import HELPERS, MAX_TEMPLATE, check_template, parse, slugify

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
    "{{int n}}|{{int zero}}|{{int items.0}}": "7|0|1",
    "{{n}} {{ without an end": "7 {{ without an end",
    "{{n}} {{ ${plan.output} {{": "7 {{ the plan {{",
    "{{#if n}}yes{{/if}}": "yes",
    "{{#if !n}}yes{{/if}}": "",
    "{{#if zero}}yes{{/if}}": "",
    "{{#if ! missing}}none{{/if}}": "none",
    "{{#if n}}a{{#if title}}b{{title}}{{/if}}c{{/if}}d": "abFix the Cart!cd",
    "{{#if n}}\n{{title}}\n{{/if}}": "\nFix the Cart!\n",
    "{{artifactUrl plan.md}}": "",
}
WRONG = {
    "{{}}": "is not a value or a helper",
    "{{ }}": "is not a value or a helper",
    "{{a b c}}": "is not a value or a helper",
    "{{a.}}": "is not a value or a helper",
    "{{1a}}": "is not a value or a helper",
    "{{a + b}}": "is not a value or a helper",
    "x\n{{a()}}": "line 2",
    "{{#if a}}": "without",
    "{{/if}}": "without",
    "{{#if}}x{{/if}}": "is not a value or a helper",
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
    assert parse("{{artifactUrl x.md}}{{#if a}}{{slugify a}}{{/if}}{{int a}}").helpers() == {
        "artifactUrl",
        *HELPERS,
    }
    assert parse("echo $HOME").is_literal
    assert not parse("echo {{a}}").is_literal
    assert slugify("  Ünïcode & " + "long " * 20) == "n-code-long-long-long-long-long-long-lon"


def test_a_checked_integer_is_one() -> None:
    for path in ("title", "flag", "none", "missing", "object", "items", "hostile"):
        with pytest.raises(InvalidInput, match=f"{{{{int {path}}}}} in line 2 needs a whole number"):
            parse(f"x\n{{{{int {path}}}}}").render(SCOPE)


def test_braces_without_an_end_are_a_mistake_of_a_file() -> None:
    assert check_template("{{n}} }} ${x").render(SCOPE) == "7 }} ${x"
    for text in ("{{topics", "a\n{{n}}\n{{ n }", "{{n}} ${plan.output}\n\n{{"):
        assert parse(text).unclosed == text.count("\n") + 1
        with pytest.raises(InvalidInput, match=f"{{{{ without }}}} in line {text.count(chr(10)) + 1}"):
            check_template(text)


def test_parsing_takes_time_in_proportion_to_the_size() -> None:
    """Twice the size takes about twice the time; before, it took 4 times as long, or seconds."""
    shapes = ("{{", "{{ ", "${", "{{a", "${a.output}", "{{a}}\n", "{{#if a}}{{/if}}", "$", "{", "\n{{")
    texts = [(shape * (size // len(shape))) for shape in shapes for size in (16 << 10, MAX_TEMPLATE)]
    texts += ["{{#if" + " " * (MAX_TEMPLATE - 100) + "?}}", "{{a" + " " * (MAX_TEMPLATE - 100) + "b c}}"]
    texts += ["{{#if " + "!" * (MAX_TEMPLATE - 100) + "}}", "{{" + "a-" * (MAX_TEMPLATE // 2 - 100) + "?}}"]
    began = process_time()
    for text in texts:
        with contextlib.suppress(InvalidInput):
            parse(text)
    assert process_time() - began < 20
    for shape in shapes:
        assert count_steps(shape, 4 << 10) < 3 * count_steps(shape, 2 << 10), shape


def count_steps(shape: str, size: int) -> int:
    """Return the number of lines of Python that parse a template of a size."""
    steps = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal steps
        steps += 1
        return count

    text = shape * (size // len(shape))
    before = sys.gettrace()
    sys.settrace(count)
    try:
        with contextlib.suppress(InvalidInput):
            parse(text)
    finally:
        sys.settrace(before)
    return steps
