"""Load workflow and cron files: read YAML, check it, and report each mistake with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from perdure.kernel.errors import InvalidInput
from perdure.workflows import templates
from perdure.workflows.checks import (
    FileMistake,
    find_mistakes,
    is_file_name,
    list_outputs,
    list_prompts,
    unknown_outputs,
)
from perdure.workflows.conversion import convert_file
from perdure.workflows.definition import KEPT, Cron, Phase, Workflow

MAX_FILE: Final = 1 << 20
MAX_NODES: Final = 20_000
MAX_DEPTH: Final = 30
SUFFIXES: Final = (".yaml", ".yml")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BLOCK: Final = "|"

Lines = Mapping[tuple[str | int, ...], int]
"""Line of each value of a file, by the path to the value."""


class FileProblem(NamedTuple):
    """A mistake in a file. `line` is 0 for a mistake of the whole file."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.message}"


class LoadedFile(NamedTuple):
    """A file that was read: its definition, or None if it has problems, and warnings."""

    file: str
    definition: Workflow | Cron | None
    problems: Sequence[FileProblem]
    warnings: Sequence[FileProblem]
    assistants: Sequence[tuple[str, FileProblem]] = ()
    """Assistants that phases name, each with the problem to report if it does not exist."""


def load_folder(folder: Path) -> list[LoadedFile]:
    """Load every YAML file of a folder in the order of their names. Files after a bad file are loaded too."""
    if not folder.is_dir():
        return []
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return _together([load_file(path) for path in files])


def _together(loaded: Sequence[LoadedFile]) -> list[LoadedFile]:
    """Reject files of a folder that repeat a name or an intent; the first file counts."""
    first: dict[tuple[str, str], str] = {}
    checked = []
    for file in loaded:
        problems = [
            FileProblem(
                file.file, 0, f"the {what} {name!r} is already used in {Path(first[what, name]).name}"
            )
            for what, name in _unique(file.definition)
            if (what, name) in first
        ]
        if not problems:
            first.update((key, file.file) for key in _unique(file.definition))
        checked.append(file._replace(definition=None, problems=problems) if problems else file)
    return checked


def _unique(definition: Workflow | Cron | None) -> Iterator[tuple[str, str]]:
    """Yield values that only one file of a folder may have."""
    if definition is not None:
        yield f"name of a {type(definition).__name__.lower()}", definition.name
    if isinstance(definition, Workflow) and definition.classification is not None:
        yield "intent", definition.classification.intent


def load_file(path: Path) -> LoadedFile:
    """Load a workflow or cron file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        return _failed(str(path), 0, f"cannot be read: {error.strerror}")
    return load_text(data, str(path), folder=path.parent)


def load_text(data: bytes | str, name: str = "workflow", *, folder: Path | None = None) -> LoadedFile:
    """Load the text of a file; `folder` is where its prompts are searched."""
    if len(data) > MAX_FILE:
        return _failed(name, 0, f"is larger than {MAX_FILE} bytes")
    try:
        content, lines = _read(data)
    except FileMistake as error:
        return _failed(name, _first(error.path), error.message)
    try:
        converted = convert_file(content)
        definition = converted.definition
        mistakes = list(converted.mistakes)
        if definition is None:
            return LoadedFile(
                name, None, [FileProblem(name, _line(lines, m.path), m.message) for m in mistakes], []
            )
        more = list(find_mistakes(definition))
        notes = list(_notes(definition, folder))
        if folder is not None and isinstance(definition, Workflow):
            definition, wrong = _with_prompts(definition, folder)
            more += wrong
    except FileMistake as error:
        return _failed(name, _line(lines, error.path), error.message)
    mistakes += [mistake for mistake in more if not converted.concerns(mistake)]
    mistakes.sort(key=lambda mistake: _text_line(lines, mistake))
    problems = [FileProblem(name, _text_line(lines, m), m.message) for m in mistakes]
    warnings = [FileProblem(name, _line(lines, note.path), note.message) for note in notes]
    if problems:
        return LoadedFile(name, None, problems, warnings)
    assistants = [
        (assistant, FileProblem(name, _line(lines, mistake.path), mistake.message))
        for assistant, mistake in _assistants(definition)
    ]
    return LoadedFile(name, definition, problems, warnings, assistants)


def from_python(content: Mapping[str, Any]) -> Workflow:
    """Build a workflow from plain data, checked like a file. Raise InvalidInput if something is wrong."""
    definition, mistakes = convert_file(content)
    if definition is not None and not mistakes:
        mistakes = list(find_mistakes(definition))
    if mistakes:
        raise InvalidInput("; ".join(mistake.message for mistake in mistakes))
    if not isinstance(definition, Workflow):
        raise InvalidInput("this is a cron, not a workflow")
    return definition


def _failed(name: str, line: int, message: str) -> LoadedFile:
    return LoadedFile(name, None, [FileProblem(name, line, message)], [])


def _first(path: tuple[str | int, ...]) -> int:
    return path[0] if path and isinstance(path[0], int) else 0


def _line(lines: Lines, path: tuple[str | int, ...]) -> int:
    """Return the line of a value, or of the nearest value that contains it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 0)


def _text_line(lines: Lines, mistake: FileMistake) -> int:
    """Return the line of a mistake within a text, if the file has the text as a block of lines."""
    begin = lines.get((*mistake.path, _BLOCK))
    return _line(lines, mistake.path) if begin is None else begin + mistake.line - 1


# --- YAML -------------------------------------------------------------------------------------------------


def _read(data: bytes | str) -> tuple[Mapping[str, Any], Lines]:
    """Return the content of a YAML file and the line of each value. Refuse aliases: they can expand files."""
    try:
        loader = _Loader(data)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        reason = getattr(error, "problem", None) or "it has characters that a text file must not have"
        raise FileMistake(
            f"this is not YAML: {reason}", (mark.line + 1 if mark is not None else 0,)
        ) from None
    except RecursionError:
        raise FileMistake(f"is nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(root, yaml.MappingNode):
        raise FileMistake("must be a mapping with `name` and `phases`")
    reader = _Reader()
    content = reader.value(root, ())
    return content, reader.lines


class _Reader:
    """Converter of YAML nodes to plain data."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str | int, ...], int] = {}
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: tuple[str | int, ...]) -> Any:
        line = node.start_mark.line + 1
        if id(node) in self._seen:
            raise FileMistake("aliases (*name) are not allowed", (line,))
        self._seen.add(id(node))
        if len(self._seen) > MAX_NODES:
            raise FileMistake(f"has more than {MAX_NODES} values", (line,))
        if len(path) > MAX_DEPTH:
            raise FileMistake(f"is nested deeper than {MAX_DEPTH} levels", (line,))
        self.lines[path] = line
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(inner, (*path, number)) for number, inner in enumerate(node.value)]
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                raise FileMistake("a key must be a text", (line,))
            if key.value in mapping:
                raise FileMistake(f"{key.value!r} is given twice", (line,))
            mapping[key.value] = self.value(value, (*path, key.value))
            self.lines[(*path, key.value)] = line
            if isinstance(value, yaml.ScalarNode) and value.style == _BLOCK:
                self.lines[(*path, key.value, _BLOCK)] = value.start_mark.line + 2
        return mapping


def _scalar(node: yaml.Node) -> Any:
    loader = _Loader("")
    try:
        value = loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError):
        raise FileMistake(f"{node.value!r} is not a value of YAML", (node.start_mark.line + 1,)) from None
    finally:
        loader.dispose()
    # YAML dates and other typed scalars are texts in a workflow.
    return value if isinstance(value, str | int | float | bool | None) else node.value


# --- prompts -----------------------------------------------------------------------------------------------


def _with_prompts(workflow: Workflow, folder: Path) -> tuple[Workflow, list[FileMistake]]:
    """Return the workflow, with prompt texts in place of the names of prompt files, and the mistakes.

    A run then needs no file of the machine on which it was loaded.
    """
    phases: list[Phase] = []
    wrong: list[FileMistake] = []
    outputs = list_outputs(workflow)
    for number, phase in enumerate(workflow.phases):
        texts: dict[str, str] = {}
        for field, prompt in list_prompts(phase):
            try:
                text = texts[field] = _prompt_text(folder, prompt)
                if text == prompt:
                    continue
                templates.check_template(text)
                unknown = list(unknown_outputs(text, outputs))
                if unknown:
                    raise InvalidInput(f"the prompt {prompt!r}: {unknown[0]}")
            except InvalidInput as error:
                wrong.append(
                    FileMistake(
                        f"phase {phase.name!r}: {error.message}", ("phases", number, *field.split("."))
                    )
                )
                texts[field] = prompt
        phases.append(_with_texts(phase, texts))
    return msgspec.structs.replace(workflow, phases=phases), wrong


def _with_texts(phase: Phase, texts: Mapping[str, str]) -> Phase:
    if "prompt" in texts:
        phase = msgspec.structs.replace(phase, prompt=texts["prompt"])
    if phase.loop is None:
        return phase
    changes = msgspec.structs.replace(
        phase.loop.on_request_changes,
        fix_prompt=texts["loop.on_request_changes.fix_prompt"],
        re_review_prompt=texts["loop.on_request_changes.re_review_prompt"],
    )
    loop = msgspec.structs.replace(phase.loop, on_request_changes=changes)
    return msgspec.structs.replace(phase, loop=loop)


def _prompt_text(folder: Path, prompt: str) -> str:
    """Return the text of a prompt: the content of its file in the project, or the prompt itself."""
    path = folder / prompt
    if not is_file_name(prompt) or not path.is_file():
        return prompt
    if not path.resolve().is_relative_to(folder.resolve().parent):
        raise InvalidInput(f"the prompt {prompt!r} is outside of the project")
    try:
        with path.open("rb") as file:
            data = file.read(templates.MAX_TEMPLATE + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the prompt {prompt!r} cannot be read: {error}") from None
    if len(data) > templates.MAX_TEMPLATE:
        raise InvalidInput(f"the prompt {prompt!r} is larger than {templates.MAX_TEMPLATE} bytes")
    return text


# --- notes ------------------------------------------------------------------------------------------------


def _notes(definition: Workflow | Cron, folder: Path | None) -> Iterator[FileMistake]:
    """Yield warnings: fields without effect, missing prompt files, unknown helpers."""
    for name, purpose in KEPT.items():
        if getattr(definition, name, None) is not None:
            yield FileMistake(f"{name} is for {purpose}; it is stored but has no effect", (name,))
    if isinstance(definition, Cron):
        return
    for number, phase in enumerate(definition.phases):
        for name, purpose in KEPT.items():
            if getattr(phase, name, None) is not None:
                message = f"phase {phase.name!r}: {name} is for {purpose}; it is stored but has no effect"
                yield FileMistake(message, ("phases", number, name))
        if phase.output_var == phase.name and (phase.loop or phase.generic_loop):
            message = (
                f"phase {phase.name!r}: output_var is the name of the phase, which means its text; "
                "use another name to read how the loop ended"
            )
            yield FileMistake(message, ("phases", number, "output_var"))
        for field, prompt in list_prompts(phase):
            if folder is not None and is_file_name(prompt) and not (folder / prompt).is_file():
                message = f"phase {phase.name!r}: there is no file {prompt!r} next to this one"
                yield FileMistake(message, ("phases", number, *field.split(".")))
        unknown = sorted(set().union(*map(_helpers, phase.templates())) - templates.HELPERS)
        if unknown:
            message = f"phase {phase.name!r}: there is no helper {', '.join(unknown)}; it renders nothing"
            yield FileMistake(message, ("phases", number))


def _assistants(definition: Workflow | Cron) -> Iterator[tuple[str, FileMistake]]:
    """Yield the assistants named by phases, except names rendered by a template."""
    for number, phase in enumerate(definition.phases if isinstance(definition, Workflow) else ()):
        for field, assistant in phase.templates():
            if field.endswith("assistant") and not templates.parse(assistant).paths():
                message = f"phase {phase.name!r}: there is no assistant or agent {assistant!r}"
                yield assistant, FileMistake(message, ("phases", number, *field.split(".")))


def _helpers(field: tuple[str, str]) -> frozenset[str]:
    _, text = field
    try:
        return templates.parse(text).helpers()
    except InvalidInput:
        return frozenset()
