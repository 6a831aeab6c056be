"""JSON schema of workflow and cron files, with a sentence for every field and every template variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from perdure.workflows import definition
from perdure.workflows.definition import Cron, Strict, Workflow

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

ABOUT: Final[Mapping[type[Strict], Mapping[str, str]]] = {
    Workflow: {
        "name": "Name of the workflow, by which runs are started.",
        "phases": "The phases, in their order.",
        "kind": "Kind of the file: `agent` for a workflow.",
        "description": "What the workflow does, for lists.",
        "trigger": "Label that says what usually starts the workflow. It has no effect.",
        "variables": "Texts that describe the workflow to readers; templates do not read them.",
        "status_checklist": "Whether `checklist` of a run has a line for each phase.",
        "final_message": "Message of a run that succeeded, a template.",
        "max_parallel": "Maximum number of phases of a run that are executed at once.",
        "classification": "For programs that choose a workflow for a message in free text.",
        "chat": "For programs that offer workflows in a chat.",
        "pr_scoped": "For GitHub: stored, but without effect.",
    },
    definition.Phase: {
        "name": "Name of the phase. It is unique in the workflow, and its output has this name in templates.",
        "label": "Name of the phase in approvals.",
        "type": "What the phase does.",
        "assistant": "Assistant or agent that executes the phase, a template; without one, "
        "`workflow_assistants` of the settings decides.",
        "prompt": "Prompt of the agent: a template, or the name of a `.md`, `.txt` or `.prompt` file.",
        "skill": "Name of a skill, which the agent finds in its input.",
        "skills": "Names of several skills.",
        "input": "Input of the agent or callable in place of the standard one; texts in it are templates.",
        "command": "Command of bash, a template whose values are passed in variables.",
        "script": "Text of a script, executed as written.",
        "runtime": "Program that executes the script; without one, `sh`.",
        "callable": "Name of a Python function that `@agents.callable` has registered.",
        "http": "Request that the phase sends.",
        "workflow": "Name of the workflow that the phase starts.",
        "context": "Values for the started workflow, which override this run's context; texts are templates.",
        "items": "List of a map phase, or a template that yields a list, or text with one item per line.",
        "max_parallel": "Maximum number of items of a map phase that are executed at once.",
        "seconds": "Duration of a wait phase.",
        "until_time": "Time in ISO 8601 at which a wait phase ends, a template.",
        "timeout_seconds": "Timeout of an execution; by default 300 seconds for commands and scripts.",
        "retry": "Attempts of an execution.",
        "on_failure": "Reaction to the final failure of the phase.",
        "model": "Model for the agent, a template; without one, `workflow_models` of the settings decides.",
        "variant": "Variant of the model, a template; without one, `workflow_variants` decides.",
        "depends_on": "Phases that end before this one starts.",
        "trigger_rule": "Results of the phases in `depends_on` that let this phase start.",
        "output_var": "Another name of the output; for a loop, the name of its result.",
        "approval_gate": "Gate at which the run waits after the phase, if `workflow_gates` switches it on.",
        "approval_artifact": "Content to review before the answer, a template.",
        "approval_gate_message": "Question to a person, a template.",
        "assignees": "People who may answer: names, or IDs of tokens.",
        "expires_after": "Seconds after which an approval without an answer expires.",
        "on_expiry": "Meaning of an expired approval: `approve` or `fail`.",
        "answer_by": "Credentials that may answer; by default all.",
        "remind_every": "Seconds between reminders of an approval without an answer.",
        "on_output": "Checks of the output.",
        "on_success": "Effect of a success.",
        "skip_if": "Condition for skipping the phase, or a list of conditions of which one must hold.",
        "loop": "A reviewer and a fix in turns.",
        "generic_loop": "Repetition of the phase until a condition holds.",
        "messages": "Entries of the phase in the history of the run.",
        "pr_scoped": "For GitHub: stored, but without effect.",
        "unrestricted_egress": "For a sandbox of another system: stored, but without effect.",
        "web_search": "For a sandbox of another system: stored, but without effect.",
        "requires_sandbox": "Sandbox that the phase needs; without it, the phase is skipped.",
        "sandbox": "Sandbox that the worker starts for each command or agent of the phase.",
        "network": "Whether commands and agents have network access in this sandbox.",
        "sandbox_image": "Image that the phase needs; if the settings do not name it, the phase is skipped.",
    },
    definition.HttpCall: {
        "url": "URL, a template.",
        "method": "Method of the request.",
        "headers": "Headers by their names; the values are templates.",
        "body": "Body, sent as JSON; texts in it are templates.",
    },
    definition.FromContext: {
        "from": "Path of a number in the context of the run.",
        "default": "The number if the context has none.",
    },
    definition.Retry: {
        "max_attempts": "Maximum number of attempts of an execution, including the first one.",
        "backoff_seconds": "Seconds before the second attempt; the pause doubles with each attempt.",
    },
    definition.OnFailure: {
        "action": "`fail` fails the run, `continue` counts as a success, `goto` goes to a phase.",
        "phase": "Phase that `goto` goes to.",
    },
    definition.OnOutput: {
        "contains_BLOCKED": "Reaction to an output that contains BLOCKED.",
        "contains_READY": "Reaction to an output that contains READY.",
        "requires_marker": "Text that the output must contain; otherwise the phase fails.",
    },
    definition.Blocked: {
        "action": "`fail` fails the phase, `continue` goes on, `pause` asks a person.",
        "message": "Error or question, a template.",
        "unless_label": "BLOCKED has no effect if the issue has this label.",
        "unless_title_matches": "BLOCKED has no effect if the title matches this regular expression; the "
        "case is ignored.",
        "bypass_message": "Entry of the history when BLOCKED has no effect, a template.",
    },
    definition.ReadyRule: {
        "action": "`continue` goes on, `pause` asks a person, `fail` fails the phase.",
        "message": "Entry of the history, error or question, a template.",
    },
    definition.OnSuccess: {
        "set_phase": "Value of `current_phase` after the run has succeeded.",
    },
    definition.ReviewLoop: {
        "max_cycles": "Maximum number of fixes.",
        "on_request_changes": "Reaction when the reviewer requests changes.",
        "approval_gate": "Gate at which the run waits before a fix, if `workflow_gates` switches it on.",
        "approval_artifact": "Content to review before the answer, a template.",
        "messages": "Entries of the loop in the history of the run.",
    },
    definition.OnRequestChanges: {
        "fix_prompt": "Prompt of the fix: a template, or the name of a file.",
        "re_review_prompt": "Prompt of the review after a fix: a template, or the name of a file.",
        "fix_model": "Model of the fix, a template; without one, that of the phase.",
        "fix_variant": "Variant of the fix, a template; without one, that of the phase.",
        "fix_assistant": "Assistant of the fix, a template; without one, that of the phase.",
        "re_review_assistant": "Assistant of the review after a fix, a template; without one, that of the "
        "phase.",
    },
    definition.LoopMessages: {
        "on_cycle_start": "When a review begins.",
        "on_approved": "When the reviewer approves.",
        "on_request_changes": "When the reviewer requests changes.",
        "on_max_cycles": "When the reviewer requests changes and no cycle is left.",
        "on_fix_start": "When a fix begins.",
        "on_fix_failed": "When a fix fails.",
        "on_pause_for_approval": "Question of the approval before a fix.",
    },
    definition.GenericLoop: {
        "max_iterations": "Maximum number of iterations.",
        "until": "Condition that ends the loop.",
        "until_bash": "Command that ends the loop if it succeeds, executed as written.",
        "interactive": "Whether a person is asked after each iteration.",
        "gate_kind": "`approve` asks for a yes or no, `reply` for a text.",
        "gate_message": "Question to the person, a template.",
        "scratch_key": "Name of the loop's state in the scratch; by default the name of the phase.",
        "fresh_context": "Whether iterations run without the outputs of earlier ones.",
        "on_soft_failure": "Handling of an iteration that ended without a clear result.",
    },
    definition.OnSoftFailure: {
        "retries": "Maximum number of retries of the iteration.",
        "then": "Whether the loop then fails or counts as complete.",
    },
    definition.Messages: {
        "on_start": "When the phase is started.",
        "on_success": "When the phase has succeeded.",
        "on_failure": "When the phase has failed.",
        "on_skipped_done": "When `skip_if` or a missing sandbox skips the phase, or it was done "
        "before a retry.",
        "on_blocked": "When the output contains BLOCKED, unless `contains_BLOCKED` has its own message.",
        "on_blocked_bypassed": "When BLOCKED has no effect, because of its label or title.",
    },
    definition.Classification: {
        "intent": "Name of the intent of the message.",
        "description": "Description of the intent.",
        "examples": "Example messages of this intent.",
    },
    definition.Chat: {
        "trigger": "Words that start the workflow.",
        "summary": "Description of the workflow in a sentence.",
        "deflect": "Messages that do not start the workflow.",
        "reply": "Answer of a chat when the workflow is started.",
    },
    Cron: {
        "name": "Name of the cron.",
        "schedule": "Cron expression.",
        "kind": "Kind of the file: `cron`.",
        "description": "What the cron is for, for lists.",
        "workflow": "Workflow that the cron starts.",
        "handler": "Handler that the cron calls.",
        "context": "Context of the workflow run, or argument of the handler.",
        "condition": "Condition that prevents the cron from firing.",
        "timezone": "Time zone of the schedule; by default UTC.",
        "enabled": "Whether the cron fires.",
        "jitter": "Random delay of at most this many seconds after the scheduled time.",
        "overlap": "Whether the cron fires while its previous run has not ended.",
        "misfire": "Which firing times still fire if they were missed while no server was running.",
        "timeout": "Timeout in seconds of the workflow or handler.",
        "discover": "For GitHub: stored, but without effect.",
        "mode": "For GitHub: stored, but without effect.",
    },
    definition.CronCondition: {
        "unless": "Predicate by name: while it holds, the cron does not fire.",
    },
}
"""Meaning of each field of a file. A test requires a sentence for every field."""


class Variable(NamedTuple):
    """A variable of templates and conditions: its name, where it has a value, and its meaning."""

    name: str
    where: str
    about: str


EVERYWHERE: Final = "everywhere"
CLAIMED: Final = "input"
LOOPS: Final = "input of a `generic_loop`"
VARIABLES: Final = (
    Variable("NAME", EVERYWHERE, "Value of the context, such as `{{title}}`. It hides the names below."),
    Variable("NAME.a.b", EVERYWHERE, "Value in an object or, by its number from 0, in a list."),
    Variable("PHASE", EVERYWHERE, "Output of the phase of this name; of a map, the list of its outputs."),
    Variable(
        "OUTPUT_VAR",
        EVERYWHERE,
        "The same output under the name in `output_var`. For a loop: its result, with `completed` and "
        "`iterations`, or `approved` and `cycles`.",
    ),
    Variable("phaseOutputs", EVERYWHERE, "Outputs by name, such as `{{phaseOutputs.plan}}`."),
    Variable("scratch", EVERYWHERE, "Scratch of the run, with the state of its loops."),
    Variable("models", EVERYWHERE, "Setting `workflow_models`, such as `{{models.plan}}`."),
    Variable("variants", EVERYWHERE, "Setting `workflow_variants`."),
    Variable(
        "output",
        "input, `until`",
        "Last output of the phase itself: the review in a `fix_prompt`, the iteration in `until`.",
    ),
    Variable("phase", CLAIMED, "Name of the phase."),
    Variable("label", CLAIMED, "Name of the execution, such as `plan_iter_2`."),
    Variable("iteration", "input, messages", "Number of the iteration, from 1 on; 0 outside of a loop."),
    Variable("maxIterations", LOOPS, "Maximum number of iterations."),
    Variable("previousOutput", LOOPS, "Last 10 KiB of the outputs of earlier iterations."),
    Variable("reply", LOOPS, "Last reply of a person."),
    Variable("qa", LOOPS, "All questions and answers, each with `question`, `answer`, `sender` and `at`."),
    Variable("item", "input of a map phase", "The item."),
    Variable("itemNumber", "input of a map phase", "Number of the item, from 1 on."),
    Variable("cycle", "input and messages of a reviewer `loop`", "Number of the fix."),
    Variable("maxCycles", "messages of a reviewer `loop`", "`max_cycles` of the loop."),
    Variable("error", "`messages.on_failure`", "Why the phase failed."),
)
"""Variables of templates. Names in capitals are chosen by the workflow."""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a workflow file or a cron file, with descriptions."""
    (one, other), components = msgspec.json.schema_components((Workflow, Cron), ref_template="#/$defs/{name}")
    for record, sentences in ABOUT.items():
        properties = components[record.__name__]["properties"]
        for name, sentence in sentences.items():
            properties[name] = {"description": sentence, **properties[name]}
    return {"$schema": DIALECT, "anyOf": [one, other], "$defs": components}
