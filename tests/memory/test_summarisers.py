"""Summarisers: sentences that say what happened, and an endpoint that answers, refuses, hangs or rambles."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernel.support import until_true
from tests.memory.conftest import DAY, World

from perdure import Perdure
from perdure.kernel.config import Settings
from perdure.kernel.errors import PerdureError
from perdure.kernel.retry import Backoff
from perdure.kernel.words import split_words
from perdure.memory import nodes
from perdure.memory.calendar import SEGMENT
from perdure.memory.grips import BULLET, EXCERPT, WHOLE, grip_for, inherited
from perdure.memory.records import NewMemoryEvent
from perdure.memory.summarisers.endpoint import EndpointSummariser
from perdure.memory.summarisers.extractive import (
    ASKED,
    BULLET_LENGTH,
    ExtractiveSummariser,
    build_summary,
    rolled_up,
)
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
from perdure.memory.wiring import build_summariser

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
    summary = build_summary(said(*TALK))
    assert summary.title == "Fix the login bug: users with an umlaut in their name cannot sign in"
    assert summary.bullets == (
        "Asked: Fix the login bug: users with an umlaut in their name cannot sign in.",
        "The bug is in normalize_name: it strips everything that is not ASCII.",
        "Fixed. normalize_name now keeps letters with diacritics, and test_login_umlaut passes.",
        "Deployed version 1.4.2 to staging; the health check is green.",
    )
    assert {"login", "umlaut"} <= set(summary.keywords)
    assert summary == build_summary(said(*TALK))


def test_what_is_repeated_from_before_is_not_summarised() -> None:
    before = said(("user", "Something about an elephant"))[0]._replace(repeated=True)
    summary = build_summary([before, *said(*TALK)])
    assert not any("elephant" in text for text in (summary.title, *summary.bullets))


def test_events_without_prose_have_a_summary_too() -> None:
    assert build_summary(said(("tool", "{}"), ("tool", "[1, 2]"))).title == "2 events"
    assert build_summary(said(("user", ""))).bullets == ()
    assert build_summary(said(("user", "ok"), ("assistant", "```\ncode = 1\n```"))).title
    assert build_summary(said(("user", "搜索引擎怎么工作？ 它建立索引。"))).bullets


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"path": "src/login.py", "lines": 120}', '{"path": "src/login.py", "lines": 120}'),
        ("```python\nprint(1)\n```", "print(1)"),
        ("```", "```"),
        ("🎉🎉 👍🏽", "🎉🎉 👍🏽"),
        ("[1, 2, 3]", "[1, 2, 3]"),
        ('{"numbers": [' + "1, " * 4000 + "]}", '{"numbers": [1,'),
    ],
    ids=["json", "code", "fence", "emoji", "numbers", "long"],
)
async def test_a_segment_without_prose_has_a_line_with_a_grip(world: World, text: str, line: str) -> None:
    first, second = await world.arrive(world.event(text), world.event(" ", f"{DAY} 10:01"))
    await world.build()
    (segment,) = await world.segments()
    (bullet,) = segment.bullets
    assert bullet.text.startswith(line)
    assert len(bullet.text) <= BULLET_LENGTH
    grip = await world.memory.expand_grip(bullet.grip_ids[0])
    assert [event.event_id for event in grip.excerpt_events] == [first]
    assert [event.event_id for event in grip.events_after] == [second]
    for above in ("toc:day:2024-01-15", "toc:year:2024"):
        node = await world.node(above)
        assert [(each.text, each.grip_ids) for each in node.bullets] == [(bullet.text, bullet.grip_ids)]


async def test_a_line_without_words_is_tied_to_the_event_that_has_it(world: World) -> None:
    ids = await world.arrive(
        *(world.event(text, f"{DAY} 10:0{place}") for place, text in enumerate(("{}", "🎉", "[1]")))
    )
    await world.build(SEGMENT)
    (segment,) = await world.segments()
    grips = [await world.memory.expand_grip(bullet.grip_ids[0]) for bullet in segment.bullets]
    assert [grip.grip.event_ids for grip in grips] == [[id] for id in ids]
    assert [bullet.text for bullet in segment.bullets] == ["{}", "🎉", "[1]"]


def test_lines_excerpts_and_keywords_have_whole_words_of_scripts_without_spaces() -> None:
    for text in (
        "ระบบจะพยายามเรียกบริการซ้ำและเพิ่มเวลารอเป็นสองเท่า" * 8,
        "請求サービスは待ち時間を二倍にします" * 20,
        "搜索引擎怎么工作" * 40,
    ):
        words = set(split_words(text))
        events = said(("user", text))
        summary = build_summary(events)
        (bullet,) = summary.bullets
        grip = grip_for("toc:x", bullet, events)
        for cut in (bullet.removeprefix(ASKED), summary.title, grip.excerpt.removesuffix("...")):
            assert set(split_words(cut)) <= words, cut
            assert len(cut) > 30
        assert summary.keywords
        assert set(summary.keywords) <= words
        assert grip.source == BULLET


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
    summary = build_summary(events)
    for bullet in summary.bullets:
        assert len(bullet) <= BULLET_LENGTH
        bullet.encode()
        grip = grip_for("toc:x", bullet, events)
        assert grip.event_ids
        assert len(grip.excerpt) <= EXCERPT
        grip.excerpt.encode()


@given(TEXTS, st.integers(4, 60))
@example("????????\u200d??", 10)
@example("Signs\u200d, and more.", 10)
def test_a_text_is_cut_at_a_length_and_never_inside_an_emoji(text: str, length: int) -> None:
    cut, flat = shorten(text, length), " ".join(text.split())
    assert len(cut) <= length
    if cut != flat:
        assert cut.endswith("…")
        # A word may end with a joiner, as words of Malayalam do.
        assert not cut[:-1].endswith("\u200d") or flat[len(cut) - 1] in " ,;:-"


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
    ("not json", ParseError, "not a chat completion", 1),
    ({"choices": []}, ParseError, "no text", 1),
    (completion("I cannot do that."), ParseError, "no JSON object", 1),
    (completion("{broken}"), ParseError, "not JSON", 1),
    (completion([1]), ParseError, "no JSON object", 1),
    (completion({"title": "x", "bullets": []}), ParseError, "no bullets", 1),
    (completion({"title": "x", "bullets": [1]}), ParseError, "not texts", 1),
    (completion({"title": "x", "bullets": "many"}), ParseError, "not a list", 1),
    (completion({"bullets": ["x"]}), ParseError, "no title", 1),
    (completion({**GOOD, "keywords": 5}), ParseError, "not a list", 1),
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


@pytest.mark.parametrize("wrong", [completion("nonsense"), (401, "who are you")], ids=["nonsense", "refused"])
async def test_a_segment_that_failed_once_is_built_when_it_is_due_again(
    endpoint: Endpoint, engine_url: str, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.setattr(nodes, "RETRY_SECONDS", (0.5, 0.5))
    endpoint.answers = [wrong, completion(GOOD)]
    async with Perdure(
        engine_url, memory_rest=0.01, memory_model="small", memory_model_url=endpoint.url
    ) as perdure:
        event = NewMemoryEvent(event_id="01HMZ0KQ6V9B4T5Z7N2C8XJ3PD", session_id="s", text="It was deployed.")
        await perdure.memory.ingest(event)

        async def is_built() -> bool:
            page = await perdure.memory.browse("toc:day:2024-01-25")
            return [(node.status, node.error) for node in page.items] == [("complete", None)]

        await until_true(is_built)
    assert len(endpoint.requests) == 2


async def test_what_passes_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(503, "busy"), (429, "slow"), completion(GOOD)]
    assert (await endpoint.summariser().summarise(said(*TALK))).title == "Login"


def test_settings_choose_the_summariser() -> None:
    assert isinstance(build_summariser(Settings()), ExtractiveSummariser)
    chosen = build_summariser(Settings(memory_model="m", memory_model_url="http://127.0.0.1:1/v1"))
    assert isinstance(chosen, EndpointSummariser)
    for wrong in (None, "", "127.0.0.1", "file:///x"):
        with pytest.raises(ConfigError):
            build_summariser(Settings(memory_model="m", memory_model_url=wrong))
