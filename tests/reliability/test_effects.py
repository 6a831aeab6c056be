"""The checker of effects finds what it is there to find: a sound history passes, a wrong one is named."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.effects import check_effects
from tests.support.history import Call, Effect, History, Outcome, Recorder
from tests.support.recording import EffectLog, RecordingQueue, read_log
from tests.support.run_snapshot import AttemptRow, CheckpointRow, EventRow, RunRow, RunRows

from perdure.kernel.errors import Fenced
from perdure.streams.model import NewEvent
from perdure.threads.work import Lease

SECOND = 1_000_000_000
LEASE = 2.0
GRACE = 2.0
THREAD = "thread"


@dataclass
class Story:
    """Runs of a thread on two workers, second by second. Each test tells one of them wrongly."""

    history: History = field(default_factory=History)
    rows: RunRows = field(default_factory=RunRows)

    def call(
        self, process: str, at: float, function: str, outcome: Outcome = "ok", code: str = "", **given: Any
    ) -> Call:
        got = given.pop("got", {})
        number = len(self.history.calls) + 1
        began = int(at * SECOND)
        call = Call(process, number, function, given, began, began + SECOND // 100, outcome, got, code)
        self.history.calls[process, number] = call
        return call

    def create(self, run: str, at: float, strategy: str = "enqueue") -> None:
        given: dict[str, Any] = {"token": f"token {run}", "thread": THREAD, "strategy": strategy}
        self.call("client", at, "create", got={"run": run}, **given)
        self.rows.runs[run] = RunRow(run, THREAD, "success", 0, 3, f"token {run}")

    def claim(self, process: str, at: float, run: str, number: int) -> str:
        attempt = f"{run}/{number}"
        claims = [[run, THREAD, attempt, number, LEASE]]
        self.call(process, at, "claim", worker=process, limit=1, got={"claims": claims})
        self.rows.attempts[attempt] = AttemptRow(run, number, attempt, "succeeded", "succeeded", 1, process)
        self.rows.runs[run] = self.rows.runs[run]._replace(attempts=number)
        self.did(process, at + 0.1, "begin", run, number)
        return attempt

    def write(self, process: str, at: float, function: str, attempt: str, **more: Any) -> Call:
        run = attempt.partition("/")[0]
        more = {"got": {"seq": 0}} | more if function == "append" else more
        return self.call(process, at, function, attempt=attempt, run=run, thread=THREAD, **more)

    def did(self, process: str, at: float, what: str, run: str, number: int, **about: Any) -> None:
        known = {"run": run, "thread": THREAD, "number": number}
        self.history.effects.append(Effect(process, int(at * SECOND), what, {**known, **about}))

    def step(self, process: str, at: float, run: str, number: int, value: str) -> None:
        self.did(process, at, "step", run, number, step="pay", value=value)
        kept = {"origin": run, "name": "pay", "body": json.dumps(value)}
        self.write(process, at, "keep", f"{run}/{number}", **kept)
        self.did(process, at, "kept", run, number, step="pay", value=value)

    def append(self, process: str, at: float, attempt: str, name: str) -> None:
        """An event of an attempt."""
        run, _, number = attempt.partition("/")
        self.tell(run, name, attempt=int(number))
        place = {"events": [[name, "{}"]], "got": {"seq": len(self.rows.streams[run])}}
        self.write(process, at, "append", attempt, **place)

    def save(self, process: str, at: float, attempt: str, checkpoint_id: str) -> None:
        run, _, number = attempt.partition("/")
        values = {"told": checkpoint_id}
        self.write(process, at, "save", attempt, values=values, got={"id": checkpoint_id})
        self.rows.checkpoints[checkpoint_id] = CheckpointRow(checkpoint_id, run, int(number), values)

    def tell(self, run: str, *names: str, status: str = "success", attempt: int = 0) -> None:
        """Events of a run, in its stream and in the thread's; a reader reads them as they come."""
        for name in names:
            body = json.dumps({"status": status} if name == "end" else {})
            for stream in (run, THREAD):
                events = self.rows.streams.setdefault(stream, [])
                events.append(EventRow(len(events) + 1, name, body, run, attempt))
                about = {"reader": "r", "stream": stream, "events": [[len(events), name, body]]}
                self.history.effects.append(Effect("client", 0, "read", about))

    def violations(self) -> list[str]:
        return check_effects(self.history, self.rows, grace=GRACE).violations


def sound() -> Story:
    """Run a lapses once and succeeds; run b is handed back once and succeeds; run c is cancelled."""
    story = Story()
    for run in "abc":
        story.create(run, 0.1)
    first = story.claim("w1", 1.0, "a", 1)
    story.step("w1", 1.5, "a", 1, "once")
    story.append("w1", 1.6, first, "metadata")
    story.call("w1", 1.8, "renew", attempts=[first], got={"going": [first]})
    story.rows.attempts[first] = story.rows.attempts[first]._replace(status="unresponsive", reason=None)
    second = story.claim("w2", 4.0, "a", 2)
    story.did("w2", 4.3, "kept", "a", 2, step="pay", value="once")
    story.rows.steps["a", "pay"] = "once"
    story.did("w1", 4.5, "end", "a", 1)
    story.write("w1", 4.6, "finish", first, result="success", outcome="fail", code=Fenced.code)
    story.save("w2", 4.7, second, "s1")
    story.did("w2", 4.8, "end", "a", 2)
    story.append("w2", 4.85, second, "metadata")
    story.tell("a", "end")
    story.write("w2", 5.0, "finish", second, result="success")
    third = story.claim("w1", 5.1, "b", 1)
    story.call("w1", 5.5, "hand_back", attempts=[third])
    released: dict[str, Any] = {"status": "failed", "reason": "released", "charged": 0}
    story.rows.attempts[third] = story.rows.attempts[third]._replace(**released)
    fourth = story.claim("w2", 5.6, "b", 2)
    story.append("w2", 5.7, fourth, "metadata")
    story.tell("b", "end")
    story.write("w2", 6.0, "finish", fourth, result="success")
    story.tell("c", "end", status="interrupted")
    story.call("client", 0.5, "cancel", run="c", thread=THREAD, got={"status": "interrupted"})
    story.rows.runs["c"] = story.rows.runs["c"]._replace(status="interrupted")
    return story


def test_a_sound_history_passes() -> None:
    report = check_effects(sound().history, sound().rows, grace=GRACE)
    assert report.violations == []
    seen = ("runs", "attempts", "retries", "lapses", "hand-backs", "stale effects", "fenced writes")
    assert [report.facts[name] for name in seen] == [3, 4, 2, 1, 1, 1, 1]
    assert str(report).startswith("0 violations in 3 runs")


Change = Callable[[Story], object]


def _replace_run(run: str, **values: Any) -> Change:
    return lambda story: story.rows.runs.update({run: story.rows.runs[run]._replace(**values)})


def _replace_attempt(attempt: str, **values: Any) -> Change:
    def change(story: Story) -> None:
        story.rows.attempts[attempt] = story.rows.attempts[attempt]._replace(**values)

    return change


def _live(story: Story) -> None:
    story.call("w1", 3.0, "renew", attempts=["a/1"], got={"going": ["a/1"]})


def _cancelled_and_claimed_at_once(story: Story) -> None:
    """The next run begins within the grace of one that was cancelled and has not stopped."""
    story.create("d", 6.5)
    story.create("e", 7.1, strategy="interrupt")
    story.claim("w1", 7.0, "d", 1)
    story.claim("w2", 8.0, "e", 1)
    story.tell("d", "end")
    story.tell("e", "end")


def _two_runs_at_once(story: Story) -> None:
    told = story.rows.streams[THREAD]
    told[1], told[3] = told[1]._replace(source="b"), told[3]._replace(source="a")


def _drop_read(story: Story) -> None:
    story.history.effects = [each for each in story.history.effects if each.about.get("stream") != "b"][:-1]


def _read_twice(story: Story) -> None:
    story.history.effects.append(next(each for each in story.history.effects if each.what == "read"))


def _claim_again(story: Story) -> None:
    story.call("w3", 9.0, "claim", worker="w3", limit=1, got={"claims": [["b", THREAD, "b/2", 2, LEASE]]})


def _change_event(story: Story, **values: Any) -> None:
    """Another event in the place of the first one of run a."""
    events = story.rows.streams["a"]
    events[0] = events[0]._replace(**values)


def _drop_event(story: Story) -> None:
    story.rows.streams["b"] = story.rows.streams["b"][1:]


def _change_checkpoint(story: Story, **values: Any) -> None:
    story.rows.checkpoints["s1"] = story.rows.checkpoints["s1"]._replace(**values)


WRONG: dict[str, tuple[str, Change]] = {
    "lost": ("lost: a of token a", lambda story: story.rows.runs.pop("a")),
    "doubled": ("doubled: token a is a, b", _replace_run("b", token="token a")),
    "not asked for": ("though no call that may have made it", _replace_run("c", token="other")),
    "not ended": ("is running and has not ended", _replace_run("b", status="running")),
    "ended twice": ("ended 2 times", lambda story: story.tell("b", "end")),
    "ended otherwise": ("its stream ends with", _replace_run("b", status="error")),
    "a webhook too many": ("has 1 webhooks", lambda story: story.rows.webhooks.update(a=1)),
    "no webhook": ("has 0 webhooks", _replace_run("a", webhook=True)),
    "charged": ("was handed back by", _replace_attempt("b/1", charged=1)),
    "not charged": ("nobody handed it back", _replace_attempt("a/1", charged=0)),
    "tried too often": ("was tried 2 times, and may be 1 times", _replace_run("a", max_attempts=1)),
    "claimed twice": ("was also given to", _claim_again),
    "claimed and not there": ("is None in the database", lambda s: s.rows.attempts.pop("b/2")),
    "live": ("had 0.97 s left and had not told its end", _live),
    "cancelled without grace": ("attempt 1 of run e", _cancelled_and_claimed_at_once),
    "stale append": (
        "append of attempt 1 of run a",
        lambda story: story.write("w1", 4.5, "append", "a/1"),
    ),
    "stale finish": (
        "finish of attempt 1 of run a",
        lambda story: story.write("w1", 5.9, "finish", "a/1", result="success"),
    ),
    "executed without a claim": (
        "nobody was given it",
        lambda story: story.did("w2", 4.4, "begin", "b", 9),
    ),
    "executed elsewhere": ("did end in w9", lambda story: story.did("w9", 4.4, "end", "a", 2)),
    "begun twice": ("began 2 times", lambda story: story.did("w2", 4.4, "begin", "a", 2)),
    "ran on": ("did step after its end", lambda s: s.step("w2", 7.0, "b", 2, "late")),
    "two at a time": ("told in thread thread 2 times", _two_runs_at_once),
    "two results": (
        "gave ['once', 'once', 'twice']",
        lambda story: story.step("w2", 4.4, "a", 2, "twice"),
    ),
    "another result is stored": (
        "and other is stored",
        lambda story: story.rows.steps.update({("a", "pay"): "other"}),
    ),
    "never executed": (
        "was executed with []",
        lambda story: story.did("w2", 5.65, "kept", "b", 2, step="ship", value="v"),
    ),
    "an event is missing": ("which has", _drop_read),
    "an event came twice": ("read 1-3, 1-1", _read_twice),
    "another event": (
        "lost: [('metadata', '{}')], up to 1, acknowledged to",
        lambda story: _change_event(story, body='{"other":1}'),
    ),
    "an event of another attempt": (
        "up to 1, acknowledged to",
        lambda story: _change_event(story, attempt=2),
    ),
    "an event is lost": ("lost: ('metadata', '{}') of attempt 2 of run b", _drop_event),
    "an event is doubled": (
        "is stored 2 times, and was sent 1 times",
        lambda story: story.tell("b", "metadata", attempt=2),
    ),
    "an event of nobody": (
        "attempt 9 of run b appended",
        lambda story: story.tell("b", "metadata", attempt=9),
    ),
    "a checkpoint is lost": ("lost: the checkpoint of", lambda story: story.rows.checkpoints.pop("s1")),
    "another checkpoint": ("lost: the checkpoint of", lambda story: _change_checkpoint(story, values={})),
    "a checkpoint is doubled": (
        "doubled: attempt 2 of run a (a/2, w2) has 2 checkpoints, and sent 1",
        lambda story: story.rows.checkpoints.update(s2=story.rows.checkpoints["s1"]),
    ),
    "a checkpoint of nobody": (
        "attempt 9 of run a stored 1 checkpoints",
        lambda story: _change_checkpoint(story, number=9),
    ),
    "a step is lost": ("lost: step ('a', 'pay')", lambda story: story.rows.steps.clear()),
    "a step of nobody": (
        "step ('b', 'ship') is x",
        lambda story: story.rows.steps.update({("b", "ship"): "x"}),
    ),
    "an end is lost": (
        "finish of attempt 2 of run b (b/2, w2), with success",
        _replace_attempt("b/2", status="unresponsive", reason=None),
    ),
    "an end is another": ("finish of attempt 2 of run b", _replace_attempt("b/2", reason="retriable")),
    "a hand-back is lost": (
        "hand_back of attempt 1 of run b (b/1, w1), with released",
        _replace_attempt("b/1", status="unresponsive", reason=None, charged=1),
    ),
    "a cancel is lost": (
        "lost: run c was interrupted for",
        lambda story: _replace_run("c", status="success")(story),
    ),
    "claimed for nobody": (
        "doubled: attempt 3 of run b belongs to no claim of w1",
        lambda story: story.rows.attempts.update(x=AttemptRow("b", 3, "x", "unresponsive", worker="w1")),
    ),
    "rows": ("rules of the rows: bad", lambda story: story.rows.broken_rules.append("bad")),
    "untyped": (
        "was answered with",
        lambda story: story.call("w1", 9.0, "append", "info", "untyped", attempt="b/2"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_history_is_named(name: str) -> None:
    words, change = WRONG[name]
    story = sound()
    change(story)
    violations = story.violations()
    assert any(words in violation for violation in violations), violations


def test_an_end_whose_answer_was_lost_may_be_told_again() -> None:
    story = sound()
    story.write("w2", 4.95, "finish", "a/2", result="success", outcome="info")
    story.write("w2", 5.9, "finish", "a/2", result="success")
    assert story.violations() == []


def test_the_order_of_claims_that_overlap_is_not_known() -> None:
    """A worker that was frozen while it claimed hears of it late: the other may have come before or after."""
    story = sound()
    for run in "de":
        story.create(run, 6.5)
    first = story.claim("w1", 7.0, "d", 1)
    second = story.claim("w2", 7.5, "e", 1)
    claims = [call for call in story.history if call.function == "claim"]
    claims[-2].ended = 9 * SECOND
    story.did("w2", 7.7, "end", "e", 1)
    story.write("w2", 7.8, "finish", second, result="success")
    story.write("w1", 9.1, "append", first)
    story.tell("e", "end")
    story.tell("d", "end")
    assert story.violations() == []
    story.write("w2", 9.2, "append", second)
    assert any("append of attempt 1 of run e" in each for each in story.violations())


def test_a_cancelled_attempt_may_be_followed_after_its_stop_or_its_grace() -> None:
    for stopped in (True, False):
        story = sound()
        story.create("d", 6.5)
        story.create("e", 7.1, strategy="rollback")
        held = story.claim("w1", 7.0, "d", 1)
        story.call("w1", 8.0, "renew", attempts=[held], got={"going": [held]})
        if stopped:
            story.write("w1", 7.5, "finish", held, result="stopped")
            story.rows.attempts[held] = story.rows.attempts[held]._replace(reason="stopped")
        story.claim("w2", 7.6 if stopped else 9.2, "e", 1)
        story.tell("d", "end")
        story.tell("e", "end")
        assert story.violations() == []


LEASED = {"attempt": "attempt", "run": "run", "thread": "thread"}


class _Refusing:
    """A queue that fences whatever it is asked for."""

    async def append(self, held: Lease, events: Any, after: int | None = None) -> int:
        raise Fenced

    async def hand_back(self, held: Any) -> None:
        return None


async def test_what_a_worker_asks_for_is_written_down(tmp_path: Path) -> None:
    log = EffectLog(tmp_path / "log")
    queue: Any = RecordingQueue(_Refusing(), Recorder("w", log.write))  # type: ignore[arg-type]
    held = Lease("run", "thread", "attempt")
    with pytest.raises(Fenced):
        await queue.append(held, [NewEvent("custom", "{}")], 3)
    await queue.hand_back([held])
    log.close()
    refused, given = read_log(tmp_path / "log")
    assert (refused.function, refused.outcome, refused.code) == ("append", "fail", Fenced.code)
    assert refused.given == {**LEASED, "events": [["custom", "{}"]], "after": 3}
    assert (given.function, given.outcome, given.given) == ("hand_back", "ok", {"attempts": ["attempt"]})


def test_a_line_that_somebody_was_killed_at_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EffectLog(path)
    recorder = Recorder("w", log.write)
    recorder.did("begin", run="a")
    with path.open("ab") as file:
        file.write(b'\n["did","w2",0,12,"beg')
    recorder.did("end", run="a")
    log.close()
    assert [effect.what for effect in read_log(path).effects] == ["begin", "end"]
