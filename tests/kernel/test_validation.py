"""Messages for values that do not match their type."""

from typing import Any, Literal

import msgspec
import pytest

from perdure.kernel.checks import build_detail, explain, one_of, parse_place


class Step(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["fast", "slow"] = "fast"


class Request(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    thread_id: str | None = None
    strategy: Literal["reject", "enqueue", "rollback"] | None = None
    steps: list[Step] | None = None
    named: dict[str, Step] | None = None


def refusal(value: Any) -> msgspec.ValidationError:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Request)
    return caught.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"treadId": 1}, "unknown field 'treadId' in the request (did you mean 'threadId'?)"),
        ({"colour": 1}, "unknown field 'colour' in the request"),
        ({"steps": [{"mod": 1}]}, "steps.0: unknown field 'mod' in the request (did you mean 'mode'?)"),
        ({"strategy": "queue"}, "strategy must be one of enqueue, reject or rollback, not 'queue'"),
        ({"threadId": 1}, "threadId: Expected `str | null`, got `int` in the request"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(value: Any, message: str) -> None:
    assert explain(refusal(value), Request, "the request") == message


def test_choices_are_found_below_lists_and_maps() -> None:
    for value in ({"steps": [{"mode": "x"}]}, {"named": {"a": {"mode": "x"}}}):
        text, steps = parse_place(refusal(value))
        assert build_detail(text, steps, Request) == "must be one of fast or slow, not 'x'"


def test_choices_read_as_a_sentence() -> None:
    assert [one_of("abc"[:count]) for count in range(4)] == ["", "a", "a or b", "a, b or c"]
