"""Values of a run: its context, its scratch, and the scope of its conditions and templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from perdure.kernel.checks import check_object
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.workflows.expressions import Expression
from perdure.workflows.model import MAX_BODY, MAX_CONTEXT, MAX_INLINE
from perdure.workflows.planner import PlannedPhase, WorkflowPlan
from perdure.workflows.templates import OUTPUTS, Template

POINTER: Final = "$output"
"""Only key of an object that replaces a large value; it has the id of the value's row."""
SCRATCH: Final = "scratch"
MAX_REMEMBERED: Final = 8 << 10
"""Maximum length of a cached context, so that 256 of them take a few megabytes."""

Paths = Iterable[tuple[str, ...]]


class Config(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of workflows at the time when a run was dispatched."""

    gates: tuple[str, ...] = ()
    """Gates that are enabled."""
    models: Mapping[str, str] = {}
    variants: Mapping[str, str] = {}
    assistants: Mapping[str, str] = {}
    """Assistant of each phase by name; `default` applies to all other phases."""
    sandbox: str | None = None
    """Sandbox in which the agents of phases run, if any."""
    command_sandbox: str | None = None
    """Sandbox that workers start for commands and isolated agents."""
    sandbox_images: tuple[str, ...] = ()
    """Images of the sandbox, in addition to its default image."""

    def assistant_of(self, phase: str) -> str | None:
        return self.assistants.get(phase, self.assistants.get("default"))


_config = msgspec.json.Decoder(Config)


@lru_cache(maxsize=256)
def decode_config(text: str | None) -> Config:
    """Decode the stored settings of a run."""
    return Config() if text is None else _config.decode(text)


class Stored(NamedTuple):
    """Stored form of values: JSON, and the large values with the ids of their rows."""

    text: str
    large: Sequence[tuple[str, str]]


def stored(values: object, what: str, new_id: Callable[[], str]) -> Stored:
    """Encode values for storage. Large values get their own rows and are replaced by pointers."""
    given = check_object(values, what)
    texts = {key: encode_json(value, what=f"{what}.{key}") for key, value in given.items()}
    if sum(map(len, texts.values())) > MAX_BODY:
        raise InvalidInput(f"{what} must be at most {MAX_BODY} characters long as JSON")
    large: list[tuple[str, str]] = []
    size = sum(map(len, texts.values()))
    for key in sorted(texts, key=lambda key: len(texts[key]), reverse=True):
        if len(texts[key]) <= MAX_INLINE and size <= MAX_CONTEXT:
            break
        row_id = new_id()
        large.append((row_id, texts[key]))
        size -= len(texts[key])
        texts[key] = encode_json({POINTER: row_id})
    inner = ",".join(encode_json(key) + ":" + text for key, text in texts.items())
    return Stored("{" + inner + "}", large)


def parse_pointer(value: Any) -> str | None:
    """Return the row of a large value if a value is a pointer, otherwise None."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(POINTER), str):
        row_id: str = value[POINTER]
        return row_id
    return None


def _decoded(text: str) -> Mapping[str, Any]:
    values: Mapping[str, Any] = decode_json(text)
    return values


_remembered = lru_cache(maxsize=256)(_decoded)


def decode_context(text: str | None) -> Mapping[str, Any]:
    """Decode the context of a run. Small contexts never change and are cached; do not modify the result."""
    if text is None:
        return {}
    return _remembered(text) if len(text) <= MAX_REMEMBERED else _decoded(text)


def decode_scratch(text: str | None) -> dict[str, Any]:
    """Decode the scratch of a run."""
    return {} if text is None else dict(decode_json(text))


def scratch_text(scratch: Mapping[str, Any], run_id: str) -> str:
    """Encode the scratch of a run. Its length is limited, so that a transaction may encode it."""
    text = encode_json(scratch, what="scratch")
    if len(text) > 2 * MAX_CONTEXT:
        raise TooLarge(f"the scratch of run {run_id} is larger than {2 * MAX_CONTEXT} characters")
    return text


def decode_body(text: str) -> Any:
    """Decode a large value."""
    return decode_json(text)


# --- scope ------------------------------------------------------------------------------------------------


def outputs_read(plan: WorkflowPlan, paths: Paths, context: Mapping[str, Any]) -> set[str]:
    """Return the outputs that paths read: `phaseOutputs.plan`, or `plan` if it is not in the context."""
    names: set[str] = set()
    for first, *rest in paths:
        if first == OUTPUTS:
            names.update(rest[:1])
        elif first not in context:
            names.add(first)
    return {name for name in names if name in plan.by_output}


def list_paths(texts: Iterable[Template | Expression]) -> frozenset[tuple[str, ...]]:
    """Return all paths that templates and conditions read."""
    return frozenset(path for text in texts for path in text.paths())


def build_scope(
    context: Mapping[str, Any],
    scratch: Mapping[str, Any],
    outputs: Mapping[str, Any],
    config: Config,
    /,
    **more: Any,
) -> dict[str, Any]:
    """Build the scope of conditions and templates: context, scratch, outputs, and the given variables."""
    return {
        **outputs,
        "models": {**config.models},
        "variants": {**config.variants},
        "output": "",
        **context,
        OUTPUTS: outputs,
        SCRATCH: scratch,
        **more,
    }


def list_reads(planned: PlannedPhase) -> frozenset[tuple[str, ...]]:
    """Return the paths that the conditions of a phase read."""
    conditions = list(planned.skip_conditions)
    if planned.until is not None:
        conditions.append(planned.until)
    return list_paths(conditions)
