"""Workflow files: accepted content, and the line of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.workflows.definition import Cron, FromContext, Workflow
from perdure.workflows.loading import MAX_NODES, load_file, load_folder, load_text

COMPLETE = """
kind: build
name: build
description: Plan, build and review
trigger: build
status_checklist: true
final_message: "Done: {{review.approved}}"
variables: {owner: the owner}
max_parallel: 2
classification: {intent: build, description: When to build, examples: [build it]}
chat: {trigger: build x, summary: Build, deflect: [do it], reply: ok}
phases:
  - {name: phase_0, type: context, label: Context}
  - name: guard
    prompt: prompts/guard.md
    skills: [one, two]
    model: "{{models.guard}}"
    variant: high
    depends_on: [phase_0]
    retry: {max_attempts: 3, backoff_seconds: 2}
    timeout_seconds: 60
    on_failure: {action: continue}
    on_output:
      requires_marker: VERDICT
      contains_READY: {action: continue}
      contains_BLOCKED:
        action: fail
        unless_label: bootstrap
        unless_title_matches: "^guard:"
        bypass_message: "It is {{title}}"
    messages: {on_start: "Starting {{name}}", on_success: done}
  - name: plan
    prompt: |
      Write a plan for {{title}}.
    depends_on: [guard]
    approval_gate: post_plan
    approval_artifact: plan.md
    approval_gate_message: "See {{approvalUrl}}"
    assignees: [ann]
    expires_after: 3600
    on_expiry: approve
  - name: test
    type: bash
    command: "pytest {{slugify title}}"
    timeout_seconds: {from: limits.test, default: 120}
    depends_on: [plan]
    trigger_rule: all_done
    output_var: result
    skip_if: ["flags.skip == true", "labels.contains('no-test')"]
  - {name: js, type: script, runtime: js, script: "console.log(1)", depends_on: [plan]}
  - {name: call, type: http, http: {url: "https://example.com/{{id}}", method: POST}, depends_on: []}
  - {name: pause, type: wait, seconds: 10, depends_on: []}
  - {name: ask, type: approval, depends_on: []}
  - {name: sub, type: workflow, workflow: other, context: {a: "{{b}}"}, depends_on: []}
  - {name: each, type: map, items: "{{list}}", assistant: worker, max_parallel: 3, depends_on: []}
  - {name: py, type: callable, callable: "tools:check", depends_on: []}
  - name: socratic
    depends_on: [plan]
    generic_loop:
      max_iterations: {from: limits.rounds, default: 8}
      until: "output.contains('READY')"
      interactive: true
      gate_kind: reply
      gate_message: "Reply, {{user}}"
      scratch_key: socratic
      fresh_context: true
      on_soft_failure: {retries: 1, then: complete}
  - name: review
    depends_on: [test]
    output_var: review
    on_success: {set_phase: complete}
    loop:
      max_cycles: 2
      approval_gate: post_review
      on_request_changes: {fix_prompt: fix it, re_review_prompt: again, fix_model: "{{models.fix}}"}
      messages: {on_approved: "Approved {{cycle}}"}
"""


def test_every_field_is_read(tmp_path: Path) -> None:
    loaded = load_text(COMPLETE)
    assert loaded.problems == []
    workflow = loaded.definition
    assert isinstance(workflow, Workflow)
    assert len(workflow.phases) == 13
    by_name = {phase.name: phase for phase in workflow.phases}
    assert by_name["test"].timeout_seconds == FromContext(from_="limits.test", default=120)
    assert by_name["test"].conditions == ["flags.skip == true", "labels.contains('no-test')"]
    assert by_name["plan"].prompt == "Write a plan for {{title}}.\n"
    assert by_name["socratic"].generic_loop is not None
    assert by_name["socratic"].generic_loop.gate_kind == "reply"


def minimal(*lines: str) -> str:
    return "name: w\nphases:\n  - name: a\n" + "".join(f"    {line}\n" for line in lines)


WRONG = {
    "": (0, "must be a mapping"),
    "[1]": (0, "must be a mapping"),
    "name: w": (1, "phases"),
    "name: w\nphases: []": (2, "phases"),
    "a: b: c": (1, "not YAML"),
    "name: w\nname: x\nphases: []": (2, "given twice"),
    "name: &x w\nkind: *x\nphases: []": (1, "aliases"),
    minimal("typ: agent"): (4, "did you mean 'type'"),
    minimal("type: agnt"): (4, "must be one of"),
    minimal("type: bash"): (4, "needs 'command'"),
    minimal("prompt: x ${nobody.output}"): (4, "${nobody.output} names no phase"),
    minimal("prompt: x") + "final_message: ${nobody.output} ${a.output}\n": (5, "${nobody.output} names"),
    minimal("command: ls"): (4, "is for phases of type bash, command or map, not agent"),
    minimal("runtime: js"): (4, "is for phases of type bash, command, map or script"),
    minimal("type: wait"): (4, "needs 'seconds' or 'until_time'"),
    minimal("skill: x", "skills: [y]"): (4, "not both"),
    minimal("depends_on: [b]"): (4, "'b', which is no phase"),
    minimal("depends_on: [a]"): (4, "depends on itself"),
    minimal("prompt: x", "skip_if: a = 1"): (5, "not understood"),
    minimal("prompt: x", "generic_loop:", "  max_iterations: 3"): (5, "needs 'until' or 'until_bash'"),
    minimal("generic_loop:", "  until: a ="): (5, "not understood"),
    minimal("generic_loop:", "  until_bash: test {{a}}"): (5, "takes no template"),
    minimal("messages:", "  on_start: '{'", "  on_success: '{{a b c}}'"): (6, "is not a value or a helper"),
    minimal("model: '{{#if a}}x'"): (4, "without"),
    minimal("on_failure: {action: goto}"): (4, "goto"),
    minimal("on_output: {contains_BLOCKED: {unless_title_matches: '('}}"): (4, "no regular expression"),
    minimal("timeout_seconds: -1"): (4, "timeout_seconds"),
    minimal("") + "  - name: a\n": (5, "two phases called 'a'"),
    minimal("depends_on: [b]") + "  - name: b\n    depends_on: [a]\n": (2, "a → b → a"),
    "name: w\nphases:\n  - name: a/b\n": (3, "name"),
    "kind: cron\nname: c\nschedule: '* * * * *'": (1, "exactly one"),
    "kind: cron\nname: c\nschedule: '* * * * *'\nworkflow: w\nhandler: h": (1, "exactly one"),
    "a: " + "[" * 40 + "]" * 40: (1, "nested deeper"),
    "a: [" + "1," * MAX_NODES + "1]": (1, "more than"),
    "a: \x00": (0, "not YAML"),
    "name: !!python/object/apply:os.system [ls]": (1, ""),
    "x" * (2 << 20): (0, "larger than"),
}


def test_a_mistake_is_told_with_its_line() -> None:
    for text, (line, reason) in WRONG.items():
        loaded = load_text(text, "w.yaml")
        assert loaded.definition is None, text[:200]
        problem = loaded.problems[0]
        assert reason in problem.message, (text[:200], problem)
        assert problem.line == line, (text[:200], problem)
        assert str(problem).startswith(f"w.yaml:{problem.line}: " if problem.line else "w.yaml: ")


def test_what_is_for_other_systems_is_kept_and_told() -> None:
    loaded = load_text(minimal("web_search: true", "messages: {on_start: '{{artifactUrl x.md}}'}"), "w.yaml")
    assert loaded.problems == []
    assert [str(each) for each in loaded.warnings] == [
        "w.yaml:4: phase 'a': web_search is for a sandbox; it is stored but has no effect",
        "w.yaml:3: phase 'a': there is no helper artifactUrl; it renders nothing",
    ]


def test_a_loop_whose_result_has_the_name_of_its_phase_is_told() -> None:
    loop = "generic_loop: {until: 'output == 1'}"
    loaded = load_text(minimal("output_var: a", loop), "w.yaml")
    assert "output_var is the name of the phase" in str(loaded.warnings[0])
    assert load_text(minimal("output_var: b", loop), "w.yaml").warnings == []


def test_a_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(minimal("prompt: prompts/a.md"))
    (tmp_path / "b.yml").write_text("{")
    (tmp_path / "c.yaml").write_text("kind: cron\nname: c\nschedule: '0 9 * * 1'\nworkflow: a\n")
    (tmp_path / "d.yaml").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "notes.txt").write_text("no")
    loaded = load_folder(tmp_path)
    assert [Path(each.file).name for each in loaded] == ["a.yaml", "b.yml", "c.yaml", "d.yaml"]
    assert [each.definition is not None for each in loaded] == [True, False, True, False]
    assert "there is no file 'prompts/a.md'" in str(loaded[0].warnings[0])
    assert isinstance(loaded[2].definition, Cron)
    assert load_folder(tmp_path / "nowhere") == []
    assert "cannot be read" in str(load_file(tmp_path / "none.yaml").problems[0])


@pytest.mark.parametrize("value", ["2026-01-01", "1e3", "0x10", "~", "yes", "1:30", "null"])
def test_scalars_of_yaml_are_plain_data(value: str) -> None:
    loaded = load_text(minimal(f"input: {value}"))
    assert loaded.problems == []


def test_prompts_of_files_are_loaded_with_the_workflow(tmp_path: Path) -> None:
    folder = tmp_path / "project" / "workflows"
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "plan.md").write_text("Plan {{title}}\n")
    (folder / "prompts" / "bad.md").write_text("{{#if x}}")
    (tmp_path / "secret.md").write_text("secret")
    text = "name: w\nphases:\n  - {name: a, prompt: PROMPT}\n"
    loaded = load_text(text.replace("PROMPT", "prompts/plan.md"), folder=folder)
    assert isinstance(loaded.definition, Workflow)
    assert [phase.prompt for phase in loaded.definition.phases] == ["Plan {{title}}\n"]
    for prompt, message in (("prompts/bad.md", "without"), ("../../secret.md", "outside of the project")):
        (problem,) = load_text(text.replace("PROMPT", prompt), folder=folder).problems
        assert message in problem.message
        assert problem.line == 3


def test_of_two_files_with_one_name_or_intent_the_first_counts(tmp_path: Path) -> None:
    for name, intent in (("a", "build"), ("b", "build"), ("c", "fix")):
        text = f"name: {name}\nclassification: {{intent: {intent}}}\nphases: [{{name: p, prompt: x}}]\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "d.yaml").write_text("name: a\nphases: [{name: p, prompt: x}]\n")
    loaded = {Path(each.file).stem: each for each in load_folder(tmp_path)}
    assert [name for name, each in loaded.items() if each.definition is None] == ["b", "d"]
    assert "intent 'build' is already used in a.yaml" in str(loaded["b"].problems[0])
    assert "name of a workflow 'a' is already used in a.yaml" in str(loaded["d"].problems[0])


def test_an_intent_that_steers_runs_is_taken() -> None:
    loaded = load_text("name: a\nclassification:\n  intent: approve\nphases: [{name: p, prompt: x}]\n")
    assert [problem.line for problem in loaded.problems] == [3]


MANY = """
name: w
statuschecklist: true
max_parallel: none
phases:
  - name: a
    typ: agent
    command: x
  - prompt: no name
  - name: b
    type: bash
    retry: {max_attempts: 0, pause: 1}
    command: "echo {{topics"
  - name: c
    type: callable
  - name: d
    prompt: "{{topics"
    depends_on: [a, nobody]
  - [not, a, phase]
  - {name: e, type: map, items: "{{topics", prompt: x}
  - {name: f, type: map, items: [1], prompt: x, command: y}
"""


TWICE = """
name: w
phases:
  - name: each
    type: map
    items: "{{topics"
    max_parallel: many
    prompt: "{{item}}"
  - name: each
    depends_on: [missing]
    prompt: "${nothing.output}"
"""


def test_every_mistake_of_a_file_is_shown() -> None:
    loaded = load_text(MANY)
    assert loaded.definition is None
    expected = [
        (3, "did you mean 'status_checklist'"),
        (4, "Expected"),
        (7, "did you mean 'type'"),
        (9, "missing required field `name`"),
        (12, "max_attempts"),
        (12, "unknown field 'pause'"),
        (13, "{{ without }} in line 1"),
        (15, "needs 'callable'"),
        (17, "{{ without }} in line 1"),
        (18, "'nobody'"),
        (19, "Expected `object`"),
        (20, "{{ without }} in line 1"),
        (21, "repeats one thing: give 'prompt' or 'command'"),
    ]
    shown = [(problem.line, problem.message) for problem in loaded.problems]
    assert [line for line, _ in shown] == [line for line, _ in expected], shown
    for (_, message), (_, part) in zip(shown, expected, strict=True):
        assert part in message
    loaded = load_text(TWICE)
    shown = [(problem.line, problem.message) for problem in loaded.problems]
    assert [line for line, _ in shown] == [6, 7, 9, 10, 11], shown
    many = "name: w\nphases:\n" + "".join(f"  - {{name: p{n}, typ: x}}\n" for n in range(300))
    assert len(load_text(many).problems) == 100
