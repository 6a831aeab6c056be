"""Summarisers: sentences that say what happened, and an endpoint that answers, refuses, hangs or rambles."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.config import Settings
from perdure.kernel.errors import PerdureError
from perdure.kernel.retry import Backoff
from perdure.memory.grips import EXCERPT, WHOLE, grip_for, inherited
from perdure.memory.summarisers.endpoint import EndpointSummariser
from perdure.memory.summarisers.extractive import BULLET_LENGTH, ExtractiveSummariser, rolled_up, summary_of
from perdure.memory.summarisers.port import (
    ApiError,
    Child,
    ConfigError,
    NoEvents,
    ParseError,
    RateLimitExceeded,
    Said,
    Timeout,
    shorten,
)
from perdure.runtime.memory_work import summariser_of

TALK = [
    ("user", "Please fix the login bug: users with an umlaut in their name cannot sign in."),
    ("assistant", "I'll look at the login code first."),
    ("tool", '{"path": "src/login.py", "lines": 120}'),
    ("assistant", "The bug is in `normalize_name`: it strips everything that is not ASCII."),
    ("assistant", "Fixed. normalize_name now keeps letters with diacritics, and test_login_umlaut passes."),
    ("user", "Great, now deploy it to staging."),
    ("assistant", "Deployed version 1.4.2 to staging; the health check is green."),
]


def said(*lines: tuple[str, str], session: str = "s") -> list[Said]:
    return [
        Said(f"e{number}", session, 1000 * number, role, "claude", text)
        for number, (role, text) in enumerate(lines)
    ]


# --- without a model --------------------------------------------------------------------------------------


def test_what_was_asked_what_was_found_and_what_came_of_it() -> None:
    summary = summary_of(said(*TALK))
    assert summary.title == "Fix the login bug: users with an umlaut in their name cannot sign in"
    assert summary.bullets == (
        "Asked: Fix the login bug: users with an umlaut in their name cannot sign in.",
        "The bug is in normalize_name: it strips everything that is not ASCII.",
        "Fixed. normalize_name now keeps letters with diacritics, and test_login_umlaut passes.",
        "Deployed version 1.4.2 to staging; the health check is green.",
    )
    assert {"login", "umlaut"} <= set(summary.keywords)
    assert summary == summary_of(said(*TALK))


def test_what_is_repeated_from_before_is_not_summarised() -> None:
    before = said(("user", "Something about an elephant"))[0]._replace(repeated=True)
    summary = summary_of([before, *said(*TALK)])
    assert not any("elephant" in text for text in (summary.title, *summary.bullets))


def test_events_without_prose_have_a_summary_too() -> None:
    assert summary_of(said(("tool", "{}"), ("tool", "[1, 2]"))).title == "2 events"
    assert summary_of(said(("user", ""))).bullets == ()
    assert summary_of(said(("user", "ok"), ("assistant", "```\ncode = 1\n```"))).title
    assert summary_of(said(("user", "搜索引擎怎么工作？ 它建立索引。"))).bullets


def test_a_roll_up_takes_lines_from_as_many_children_as_it_can() -> None:
    children = [
        Child(f"n{number}", f"Part {number}", [f"{word} was repaired", f"{word} was painted"], [word])
        for number, word in enumerate(("roof", "door", "window", "floor", "garden", "kitchen", "cellar"))
    ]
    summary = rolled_up("Monday", children)
    assert summary.title == "Monday"
    assert len(summary.bullets) == 6
    assert len({text.split()[0] for text in summary.bullets}) == 6
    assert len(summary.keywords) == 7
    same = rolled_up("Monday", [Child("a", "A", ["the roof was repaired"] * 3, ["roof"])] * 4)
    assert same.bullets == ("the roof was repaired",)


async def test_nothing_is_an_error() -> None:
    extractive, model = ExtractiveSummariser(), EndpointSummariser("http://127.0.0.1:1", "m")
    for summariser in (extractive, model):
        with pytest.raises(NoEvents):
            await summariser.summarise([])
        with pytest.raises(NoEvents):
            await summariser.roll_up("Monday", [])


TEXTS = st.text(st.sampled_from("ab .!?\n`*_-#é漢😀👨\u200d👩\ufe0f🏽\u0301"), max_size=400)


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), TEXTS), min_size=1, max_size=6
    )
)
def test_any_text_is_summarised_and_tied_to_its_events(lines: list[tuple[str, str]]) -> None:
    events = said(*lines)
    summary = summary_of(events)
    for bullet in summary.bullets:
        assert len(bullet) <= BULLET_LENGTH
        bullet.encode()
        grip = grip_for("toc:x", bullet, events)
        assert grip.event_ids
        assert len(grip.excerpt) <= EXCERPT
        grip.excerpt.encode()


@given(TEXTS, st.integers(4, 60))
def test_a_text_is_cut_at_a_length_and_never_inside_an_emoji(text: str, length: int) -> None:
    cut = shorten(text, length)
    assert len(cut) <= length
    if cut != " ".join(text.split()):
        assert cut.endswith("…")
        assert not cut[:-1].endswith("\u200d")


# --- grips ------------------------------------------------------------------------------------------------


def test_a_grip_is_of_the_events_that_share_its_words() -> None:
    events = said(*TALK)
    grip = grip_for("toc:x", "The health check of staging is green", events)
    assert grip.event_ids == ("e6",)
    assert grip.excerpt.startswith("Deployed version")
    assert grip_for("toc:x", "Something else entirely happened", events).source == WHOLE
    similar = said(
        ("user", "alpha beta gamma delta"), ("user", "alpha beta gamma"), ("user", "nothing at all in here")
    )
    assert grip_for("toc:x", "alpha beta gamma delta", similar).event_ids == ("e0",)
    close = said(("user", "alpha beta gamma delta one"), ("user", "alpha beta gamma delta two"))
    assert grip_for("toc:x", "alpha beta gamma delta", close).event_ids == ("e0", "e1")
    mixed = [close[0], close[1]._replace(session_id="other")]
    assert grip_for("toc:x", "alpha beta gamma delta", mixed).event_ids == ("e0",)


def test_a_line_of_a_parent_has_the_grips_of_the_lines_that_it_is_made_of() -> None:
    children = [
        Child("a", "A", ["the roof was repaired", "the door was painted"], []),
        Child("b", "B", ["x"], []),
    ]
    grips = [[["g1"], ["g2"]], [["g3"]]]
    assert inherited("the roof was repaired", children, grips) == ["g1"]
    assert inherited("nothing of it", children, grips)
    assert inherited("x", [], []) == []


# --- an endpoint ------------------------------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """A server that answers as the test says, one answer after the other."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await asyncio.Event().wait()
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, content_type="application/json")

    def summariser(self, **options: Any) -> EndpointSummariser:
        known = {"key": "secret-key", "backoff": Backoff(0.001, 0.001)}
        return EndpointSummariser(self.url, "small", **{**known, **options})


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}/v1/"
    yield made
    await runner.cleanup()


def completion(content: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


GOOD = {
    "title": "Login",
    "bullets": ["The bug was fixed.", "It was deployed."],
    "keywords": ["login", "login", "bug"],
}


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        f"```json\n{json.dumps(GOOD)}\n```",
        f"Here you are: {json.dumps(GOOD)} I hope it helps.",
        {**GOOD, "bullets": [{"text": text} for text in GOOD["bullets"]]},
    ],
    ids=["plain", "fence", "words", "objects"],
)
async def test_an_answer_becomes_a_summary(endpoint: Endpoint, content: Any) -> None:
    endpoint.answers = [completion(content)]
    summary = await endpoint.summariser().summarise(said(*TALK))
    assert (summary.title, summary.bullets, summary.keywords) == (
        "Login",
        ("The bug was fixed.", "It was deployed."),
        ("login", "bug"),
    )
    (request,) = endpoint.requests
    assert request["model"] == "small"
    assert "umlaut" in request["messages"][-1]["content"]
    assert endpoint.headers[0]["Authorization"] == "Bearer secret-key"


async def test_children_are_sent_to_be_rolled_up(endpoint: Endpoint) -> None:
    endpoint.answers = [completion(GOOD)]
    children = [Child(f"n{number}", f"Part {number}", ["x" * 300] * 5, []) for number in range(200)]
    assert (await endpoint.summariser().roll_up("Monday", children)).bullets
    sent = endpoint.requests[0]["messages"][-1]["content"]
    assert "Part 0" in sent
    assert "Part 199" in sent
    assert len(sent) < 40_000


WRONG: list[tuple[Any, type[Exception], str, int]] = [
    ((429, "slow down"), RateLimitExceeded, "429: slow down", 3),
    ((500, "oops"), ApiError, "500: oops", 3),
    ((401, "who are you"), ApiError, "401", 1),
    ((302, ""), ApiError, "302", 1),
    ("not json", ParseError, "no chat completion", 1),
    ({"choices": []}, ParseError, "no text", 1),
    (completion("I cannot do that."), ParseError, "no JSON object", 1),
    (completion("{broken}"), ParseError, "not JSON", 1),
    (completion([1]), ParseError, "no JSON object", 1),
    (completion({"title": "x", "bullets": []}), ParseError, "no bullets", 1),
    (completion({"title": "x", "bullets": [1]}), ParseError, "no texts", 1),
    (completion({"title": "x", "bullets": "many"}), ParseError, "no list", 1),
    (completion({"bullets": ["x"]}), ParseError, "no title", 1),
    (completion({**GOOD, "keywords": 5}), ParseError, "no list", 1),
    (completion({**GOOD, "bullets": ["x" * (2 << 20)]}), ParseError, "longer than", 1),
]


async def test_each_failure_has_its_name(endpoint: Endpoint) -> None:
    for answer, error, message, tries in WRONG:
        endpoint.answers, endpoint.requests = [answer], []
        with pytest.raises(error, match=message) as raised:
            await endpoint.summariser().summarise(said(*TALK))
        assert isinstance(raised.value, PerdureError)
        assert str(raised.value).startswith(f"{error.__name__}: ")
        assert "secret-key" not in str(raised.value)
        assert len(endpoint.requests) == tries, answer


async def test_an_endpoint_that_hangs_or_is_away_is_given_up(endpoint: Endpoint) -> None:
    endpoint.answers = ["hang"]
    with pytest.raises(Timeout, match="no answer within"):
        await endpoint.summariser(timeout=0.05).summarise(said(*TALK))
    assert len(endpoint.requests) == 3
    gone = EndpointSummariser("http://127.0.0.1:1/v1", "m", backoff=Backoff(0.001, 0.001))
    with pytest.raises(ApiError, match="cannot be reached"):
        await gone.summarise(said(*TALK))


async def test_what_passes_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(503, "busy"), (429, "slow"), completion(GOOD)]
    assert (await endpoint.summariser().summarise(said(*TALK))).title == "Login"


def test_settings_choose_the_summariser() -> None:
    assert isinstance(summariser_of(Settings()), ExtractiveSummariser)
    chosen = summariser_of(Settings(memory_model="m", memory_model_url="http://127.0.0.1:1/v1"))
    assert isinstance(chosen, EndpointSummariser)
    for wrong in (None, "", "127.0.0.1", "file:///x"):
        with pytest.raises(ConfigError):
            summariser_of(Settings(memory_model="m", memory_model_url=wrong))
