"""Arguments and options of commands: JSON, files, lines of stdin, choices, confirmations, shared options."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import typer
from typer.models import Default

from perdure.cli.shell.ids import list_id_kinds, resolve_all, to_resolve
from perdure.cli.shell.output import Output, parse_duration
from perdure.cli.shell.target import CommandConnection, CommandTarget

# --- arguments --------------------------------------------------------------------------------------------


C = TypeVar("C", bound=str)


def parse_json(text: str, what: str) -> Any:
    """Parse a JSON value."""
    from perdure.errors import InvalidInput
    from perdure.kernel.codec import decode_json

    try:
        return decode_json(text)
    except InvalidInput as error:
        hint = """; a string needs double quotes inside the shell's quotes: '"hello"'"""
        reason = error.message.removeprefix("the text is not JSON: ")
        raise typer.BadParameter(f"{what} is not JSON: {reason}{hint}") from None


def parse_object(text: str | None, what: str) -> dict[str, Any] | None:
    """Parse a JSON object; None means not given."""
    if text is None:
        return None
    value = parse_json(text, what)
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{what} must be a JSON object, such as '{{\"key\": 1}}'")
    return value


def read_inputs(text: str) -> list[Any]:
    """Read the values of INPUT: JSON, `@FILE`, or with `-` one value per line of stdin."""
    if text == "-":
        return [
            parse_json(line, f"line {number}") for number, line in enumerate(sys.stdin, 1) if line.strip()
        ]
    return [read_input(text)]


def read_input(text: str, what: str = "INPUT") -> Any:
    """Read one JSON value, directly or from `@FILE`."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {text[1:]}: {error}") from None
    return parse_json(text, what)


def parse_metadata(terms: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse metadata to filter by: `key:value` terms or JSON objects."""
    metadata: dict[str, Any] = {}
    for term in terms or ():
        key, colon, text = term.partition(":")
        if term.startswith("{"):
            metadata.update(parse_object(term, "--metadata") or {})
        elif key and colon:
            metadata[key] = text
        else:
            raise typer.BadParameter("--metadata must be key:value or a JSON object")
    return metadata or None


def parse_choice(value: str, choices: Sequence[C], option: str) -> C:
    """Check that a value is one of the choices, and return it."""
    for choice in choices:
        if choice == value:
            return choice
    from perdure.kernel.checks import one_of

    raise typer.BadParameter(f"{option} must be {one_of(choices)}, not {value!r}")


def optional_choice(value: str | None, choices: Sequence[C], option: str) -> C | None:
    """Check that a value is one of the choices; None means not given."""
    return None if value is None else parse_choice(value, choices, option)


def parse_choices(values: Sequence[str] | None, choices: Sequence[C], option: str) -> list[C] | None:
    """Check that values are among the choices; None means not given."""
    return [parse_choice(value, choices, option) for value in values] if values else None


def confirm(question: str) -> None:
    """Ask for confirmation on a terminal; without one, --yes is required."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Cannot ask for confirmation without a terminal; add --yes")
    typer.confirm(question, abort=True, err=True)


# --- options ----------------------------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")
ClientCommand = Callable[Concatenate["CommandContext", P], Coroutine[Any, Any, None]]

CONNECTION = "CommandConnection"
OUTPUT = "Output"
ALIASES = {"list": ("ls",), "show": ("get",), "delete": ("rm",)}
"""Every group accepts these short names; its help shows only the long ones."""
NO_HELP = Default(None)
"""The help of a group comes from its callback."""


def flag(*names: str, help: str, panel: str | None = None) -> Any:
    """Build an option without a value. Its type is hidden: `--wait <bool>` looks as if it took one."""
    return typer.Option(*names, metavar="", help=help, rich_help_panel=panel)


def text(
    metavar: str,
    help: str,
    *names: str,
    panel: str | None = None,
    variable: str | None = None,
    complete: Callable[..., Any] | None = None,
) -> Any:
    """Build an option with a text; one with an environment variable concerns the connection."""
    return typer.Option(
        *names,
        metavar=metavar,
        help=help,
        envvar=variable,
        rich_help_panel=CONNECTION if variable else panel,
        autocompletion=complete,
    )


def name_argument(metavar: str, help: str, complete: Callable[..., Any]) -> Any:
    """Build an argument with a name that shells complete."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=complete)


def number(help: str, *names: str, min: int | None = None, max: int | None = None) -> Any:
    """Build an option with a whole number."""
    return typer.Option(*names, metavar="N", min=min, max=max, help=help)


def duration(help: str, *names: str) -> Any:
    """Build an option with a duration, such as 30s or 10m."""
    return typer.Option(
        *names, parser=parse_duration, metavar="DURATION", help=f"{help}, such as 30s, 10m or 2h."
    )


JsonOption = Annotated[bool, flag("--json", help="Print JSON only.", panel=OUTPUT)]
NoColorOption = Annotated[
    bool, flag("--no-color", help="Disable colors (NO_COLOR does the same).", panel=OUTPUT)
]
UrlOption = Annotated[
    str | None,
    text("URL", "Server URL (default: http://127.0.0.1:4747).", "--url", variable="PERDURE_URL"),
]
TokenOption = Annotated[
    str | None,
    text("TOKEN", "Token or API key to authenticate with.", "--token", variable="PERDURE_TOKEN"),
]
NamespaceOption = Annotated[
    str | None,
    text("NAME", "Namespace to use.", "--namespace", "-n", variable="PERDURE_NAMESPACE"),
]
DatabaseOption = Annotated[
    str | None,
    text(
        "URL",
        "Open this database directly, without a server: sqlite:///file or postgresql://…",
        "--database",
        panel=CONNECTION,
    ),
]
LimitOption = Annotated[int, number("Maximum number of results.", "--limit", min=1, max=10_000)]
TimeoutOption = Annotated[float | None, duration("Maximum time to wait", "--timeout")]
YesOption = Annotated[bool, flag("--yes", "-y", help="Skip the confirmation.")]
ConfigOption = Annotated[str | None, text("JSON", "Configuration as a JSON object.", "--config")]
ContextOption = Annotated[
    str | None, text("JSON", "Context passed to the agent, as a JSON object.", "--context")
]
MetadataOption = Annotated[str | None, text("JSON", "Metadata as a JSON object.", "--metadata")]
MetadataFilter = Annotated[
    list[str] | None,
    text("KEY:VALUE", "Filter by metadata; repeatable.", "--metadata", "-m"),
]
LogLevelOption = Annotated[
    str | None, text("LEVEL", "Log level: debug, info, warning or error.", "--log-level")
]
CorsOption = Annotated[
    list[str] | None,
    text("ORIGIN", "Allow cross-origin requests from ORIGIN (repeatable; * for any).", "--cors-origin"),
]


class CommandContext:
    """The context of a client command: the target of its requests, and its output."""

    def __init__(self, target: CommandTarget, output: Output) -> None:
        self.target = target
        self.output = output
        self._connection: CommandConnection | None = None

    @property
    def as_json(self) -> bool:
        return self.output.as_json

    @asynccontextmanager
    async def connect(self, *, create: bool = False) -> AsyncIterator[CommandConnection]:
        """Connect to the server or database; `create` creates a missing database file.

        Within a connection, yield that connection.
        """
        if self._connection is not None:
            yield self._connection
            return
        async with self.target.open(create=create) as connection:
            self._connection = connection
            try:
                yield connection
            finally:
                self._connection = None

    def answer(self, document: Any, message: str) -> None:
        """Print a document with --json, otherwise a message."""
        if self.as_json:
            self.output.document(document)
        else:
            self.output.print(message)


def _common(
    url: UrlOption = None,
    token: TokenOption = None,
    namespace: NamespaceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
) -> CommandContext:
    return CommandContext(
        CommandTarget(url, token, namespace, database), Output(as_json=as_json, no_color=no_color)
    )


def with_options(
    make: Callable[..., T], *, first: bool = False
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Add the options of `make` to a command. The result of `make` becomes its first parameter.

    The command's own options replace those of the same name. With `first`, those of `make` come first in the
    help.
    """

    def add(function: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        own = list(inspect.signature(function).parameters.values())[1:]
        own_names = {parameter.name for parameter in own}
        shared = [parameter for parameter in _parameters(make) if parameter.name not in own_names]

        @wraps(function)
        def run(**given: Any) -> None:
            first_argument = make(**{parameter.name: given[parameter.name] for parameter in shared})
            function(first_argument, **{name: given[name] for name in own_names})  # type: ignore[call-arg]

        hints = get_type_hints(function, include_extras=True)
        typed = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
        parameters = [*shared, *typed] if first else [*typed, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        return run

    return add


def client_command(function: ClientCommand[P]) -> Callable[..., None]:
    """Build a command from a coroutine function, whose first parameter is the context."""

    id_parameters = list_id_kinds(get_type_hints(function, include_extras=True))

    async def call(context: CommandContext, given: dict[str, Any]) -> None:
        if not to_resolve(given, id_parameters):
            await function(context, **given)  # type: ignore[call-arg]
            return
        async with context.connect() as connection:
            await function(context, **await resolve_all(connection, given, id_parameters))  # type: ignore[call-arg]

    @wraps(function)
    def run(context: CommandContext, /, **given: Any) -> None:
        try:
            asyncio.run(call(context, given))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return with_options(_common)(run)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]


class CommandGroup(typer.Typer):
    """The client commands of one noun, such as `perdure run`."""

    def __init__(self, help: Any = NO_HELP) -> None:
        super().__init__(help=help, no_args_is_help=True)

    def client_command(self, name: str, *aliases: str) -> Callable[[ClientCommand[P]], Callable[..., None]]:
        """Add a client command under its name and its hidden aliases."""

        def add(function: ClientCommand[P]) -> Callable[..., None]:
            run = client_command(function)
            self.command(name)(run)
            for alias in (*ALIASES.get(name, ()), *aliases):
                self.command(alias, hidden=True)(run)
            return run

        return add
