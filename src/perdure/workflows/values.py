"""The values of a run: its context, its scratch, and what conditions and templates see of them."""

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
"""The one key of an object that stands for a large value, whose row it names."""
SCRATCH: Final = "scratch"
MAX_REMEMBERED: Final = 8 << 10
"""Only contexts of at most this many characters are remembered, so that 256 of them take a few megabytes."""

Paths = Iterable[tuple[str, ...]]


class Config(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the settings said about workflows when a run was dispatched."""

    gates: tuple[str, ...] = ()
    """The gates that are switched on."""
    models: Mapping[str, str] = {}
    variants: Mapping[str, str] = {}
    assistants: Mapping[str, str] = {}
    """The assistant of each phase, by its name; `default` is that of all others."""
    sandbox: str | None = None
    """The sandbox in which the agents of phases run, if they run in one."""
    command_sandbox: str | None = None
    """The sandbox that workers start for commands and isolated agents."""
    sandbox_images: tuple[str, ...] = ()
    """The images that this sandbox has beside its default one."""

    def assistant_of(self, phase: str) -> str | None:
        return self.assistants.get(phase, self.assistants.get("default"))


_config = msgspec.json.Decoder(Config)


@lru_cache(maxsize=256)
def decode_config(text: str | None) -> Config:
    """The stored settings of a run."""
    return Config() if text is None else _config.decode(text)


class Stored(NamedTuple):
    """Values as they are stored: as JSON, and the large ones among them by the ids of their rows."""

    text: str
    large: Sequence[tuple[str, str]]


def stored(values: object, what: str, new_id: Callable[[], str]) -> Stored:
    """Values as they are stored. Large ones get rows of their own, and pointers in their place."""
    given = check_object(values, what)
    texts = {key: encode_json(value, what=f"{what}.{key}") for key, value in given.items()}
    if sum(map(len, texts.values())) > MAX_BODY:
        raise InvalidInput(f"{what} must be at most {MAX_BODY} characters long as JSON")
    large: list[tuple[str, str]] = []
    size = sum(map(len, texts.values()))
    for key in sorted(texts, key=lambda each: len(texts[each]), reverse=True):
        if len(texts[key]) <= MAX_INLINE and size <= MAX_CONTEXT:
            break
        name = new_id()
        large.append((name, texts[key]))
        size -= len(texts[key])
        texts[key] = encode_json({POINTER: name})
    inner = ",".join(encode_json(key) + ":" + text for key, text in texts.items())
    return Stored("{" + inner + "}", large)


def parse_pointer(value: Any) -> str | None:
    """The row of a large value, if a value is a pointer to one."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(POINTER), str):
        found: str = value[POINTER]
        return found
    return None


def _decoded(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = decode_json(text)
    return found


_remembered = lru_cache(maxsize=256)(_decoded)


def decode_context(text: str | None) -> Mapping[str, Any]:
    """The context of a run. It never changes, so that a small one is decoded once; callers leave it alone."""
    if text is None:
        return {}
    return _remembered(text) if len(text) <= MAX_REMEMBERED else _decoded(text)


def decode_scratch(text: str | None) -> dict[str, Any]:
    """The scratch of a run."""
    return {} if text is None else dict(decode_json(text))


def scratch_text(scratch: Mapping[str, Any], run_id: str) -> str:
    """The scratch of a run as it is stored. It is bounded, so that the transaction may encode it."""
    text = encode_json(scratch, what="scratch")
    if len(text) > 2 * MAX_CONTEXT:
        raise TooLarge(f"the scratch of run {run_id} is larger than {2 * MAX_CONTEXT} characters")
    return text


def decode_body(text: str) -> Any:
    """A large value out of its row."""
    return decode_json(text)


# --- what is read -----------------------------------------------------------------------------------------


def outputs_read(plan: WorkflowPlan, paths: Paths, context: Mapping[str, Any]) -> set[str]:
    """The names of outputs that paths lead to: `phaseOutputs.plan`, or `plan` if the context has none."""
    names: set[str] = set()
    for first, *rest in paths:
        if first == OUTPUTS:
            names.update(rest[:1])
        elif first not in context:
            names.add(first)
    return {name for name in names if name in plan.by_output}


def list_paths(texts: Iterable[Template | Expression]) -> frozenset[tuple[str, ...]]:
    """Everything that templates and conditions read."""
    return frozenset(path for each in texts for path in each.paths())


def build_scope(
    context: Mapping[str, Any],
    scratch: Mapping[str, Any],
    outputs: Mapping[str, Any],
    config: Config,
    /,
    **more: Any,
) -> dict[str, Any]:
    """What conditions and templates see: the context, scratch, outputs, and what the moment adds."""
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
    """What the conditions of a phase read."""
    conditions = list(planned.skip_conditions)
    if planned.until is not None:
        conditions.append(planned.until)
    return list_paths(conditions)
