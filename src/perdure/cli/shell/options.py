"""The options that commands share, and the way in which they reach a store."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from perdure.cli.shell.output import Output, parse_duration
from perdure.cli.shell.target import Target

P = ParamSpec("P")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
NoColorOption = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="PERDURE_URL",
        metavar="URL",
        help="The server's address; http://127.0.0.1:4747 if left out.",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="PERDURE_TOKEN", metavar="SECRET", help="The token or key to show."),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", envvar="PERDURE_NAMESPACE", metavar="NAME", help="Where to look."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Open this database instead of asking a server: sqlite:///file or postgresql://…",
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")]
DurationOption = Annotated[
    float | None, typer.Option(parser=parse_duration, metavar="TIME", help="Such as 30s, 10m, 1h or 2d.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
]
CorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin", metavar="ORIGIN", help="Let pages of this origin in; repeat it for more, or *."
    ),
]


class CommandContext:
    """What a command works with: where to ask, and how to answer."""

    def __init__(self, target: Target, output: Output) -> None:
        self.target = target
        self.output = output

    @property
    def as_json(self) -> bool:
        return self.output.as_json


def _common(
    url: UrlOption = None,
    token: TokenOption = None,
    namespace: NamespaceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
) -> CommandContext:
    return CommandContext(Target(url, token, namespace, database), Output(as_json=as_json, no_color=no_color))


def at_desk(
    command: Callable[Concatenate[CommandContext, P], Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Make a command of a coroutine function: it gets a desk, and its command line the options of one."""
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = [each for each in _parameters(_common) if each.name not in {one.name for one in own}]
    names = {each.name for each in _parameters(_common)}

    @wraps(command)
    def run(**given: Any) -> None:
        desk = _common(**{name: given[name] for name in names if name in given and name not in own_names})
        try:
            asyncio.run(command(desk, **{name: given[name] for name in own_names}))  # type: ignore[call-arg]
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    own_names = {each.name for each in own}
    hints = get_type_hints(command, include_extras=True)
    typed = [each.replace(annotation=hints[each.name]) for each in own]
    run.__signature__ = inspect.Signature([*typed, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*typed, *shared)}
    del run.__wrapped__
    return run


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return [each.replace(annotation=hints[each.name]) for each in parameters]
