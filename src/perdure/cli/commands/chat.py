"""`perdure chat`: a conversation with an assistant in the terminal, or by lines of a script."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import AssistantArgument, assistant_exists
from perdure.cli.shell.options import CommandContext, client_command, flag, text
from perdure.cli.shell.output import printable, shorten, warn
from perdure.kernel.errors import NotFound

if TYPE_CHECKING:
    from perdure.cli.shell.target import CommandConnection
    from perdure.messaging.records import ChatMessage, MessagingSession
    from perdure.streams.model import StreamEvent

PLATFORM = "cli"
SHOWN_BEFORE = 6
"""Number of messages shown first when a session continues."""
EXPLAIN_SECONDS = 4.0
"""Silence after which the reason of a waiting turn is shown."""
HELP = """/history [N]  show the last N messages (20)
/reset        begin a new session, without a memory of this one
/help         show this
/exit         leave (Ctrl-D does the same)
Ctrl-C cancels the answer that is being written."""


@client_command
async def chat(
    context: CommandContext,
    assistant: AssistantArgument,
    message: Annotated[
        str | None,
        text(
            "TEXT",
            "Send this message, print the answer and leave; @FILE reads it from a file.",
            "-m",
            "--message",
        ),
    ] = None,
    thread: Annotated[
        str | None,
        text("NAME", "Name of a separate conversation (default: one for each assistant).", "--thread"),
    ] = None,
    new: Annotated[bool, flag("--new", help="Begin a new session.")] = False,
) -> None:
    """Chat with an assistant. Without a terminal, each line of stdin is a message."""
    from perdure.cli.shell.target import actor

    async with context.connect(create=True) as connection:
        place = (PLATFORM, assistant, actor().removeprefix("cli:"), thread)
        conversation = ChatSession(context, connection, assistant, *place)
        await conversation.open(new=new)
        if message is not None:
            await conversation.say(_parse_text(message))
        elif sys.stdin.isatty() and not context.as_json:
            await conversation.talk()
        else:
            async for line in _lines():
                if await conversation.hear(line):
                    break
    raise typer.Exit(conversation.code)


def _parse_text(message: str) -> str:
    if not message.startswith("@"):
        return message
    try:
        return Path(message[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {message[1:]}: {error}") from None


async def _lines() -> AsyncIterator[str]:
    """Yield the lines of stdin. Read them in a thread, so that answers stream in the meantime."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.rstrip("\n")


@dataclass
class _Answer:
    """The printed part of an answer."""

    text: str = ""

    def add(self, piece: str) -> None:
        self.text += piece


class ChatSession:
    """A session with an assistant, and its display."""

    def __init__(
        self,
        context: CommandContext,
        connection: CommandConnection,
        assistant: str,
        platform: str,
        channel: str,
        user: str,
        thread: str | None,
    ) -> None:
        self._context = context
        self._connection = connection
        self._messaging = connection.messaging
        self._assistant = assistant
        self._key = (platform, channel, user)
        self._thread = thread
        self._session: MessagingSession | None = None
        self.code = 0

    @property
    def session(self) -> MessagingSession:
        assert self._session is not None
        return self._session

    async def open(self, *, new: bool = False) -> None:
        """Continue the session of this person and assistant, or start one."""
        if not await assistant_exists(self._connection.assistants, self._assistant):
            raise NotFound(f"Assistant {self._assistant} not found")
        session = await self._get()
        if new and session.message_count:
            await self._messaging.deactivate(session.session_id)
            session = await self._get()
        self._session = session

    async def _get(self) -> MessagingSession:
        return await self._messaging.get_or_create(
            *self._key, thread_id=self._thread, assistant_id=self._assistant
        )

    # --- a terminal -------------------------------------------------------------------------------------

    async def talk(self) -> None:
        """Read messages from the terminal and print the answers, until the person leaves."""
        print_ = self._context.output.print
        count = self.session.message_count
        if count:
            print_(
                f"Going on with {self._assistant} ({count} messages). /reset begins anew, /help shows more."
            )
            await self._show_history(SHOWN_BEFORE)
        else:
            print_(f"Chat with {self._assistant}. /help shows the commands, Ctrl-D leaves.")
        with suppress(ImportError):
            import readline  # noqa: F401 - it gives input() line editing
        while True:
            question = self.session.question
            if question is not None:
                self._show_question(question)
            try:
                line = _ask("answer> " if question is not None else "you> ")
            except EOFError:
                print_("")
                return
            except KeyboardInterrupt:
                print_("(Ctrl-D leaves)")
                continue
            if await self.hear(line):
                return

    async def hear(self, line: str) -> bool:
        """Execute a line. Return True if it is the last one."""
        word, _, rest = line.strip().partition(" ")
        if not word:
            return False
        if word in ("/exit", "/quit"):
            return True
        if word == "/help":
            self._context.output.print(HELP)
        elif word == "/history":
            await self._show_history(int(rest) if rest.strip().isdecimal() else 20)
        elif word == "/reset":
            await self._reset()
        elif word.startswith("/") and not rest and word[1:].isalpha():
            warn(f"there is no command {word}; /help lists the commands")
        else:
            await self.say(line)
        return False

    async def _reset(self) -> None:
        await self._messaging.deactivate(self.session.session_id)
        self._session = await self._get()
        self._context.answer({"session_id": self.session.session_id, "reset": True}, "A new session began.")

    async def _show_history(self, count: int) -> None:
        page = await self._messaging.history(self.session.session_id, limit=min(count, 1000))
        if self._context.as_json:
            self._context.output.line({"session_id": self.session.session_id, "messages": page.items})
            return
        if not page.items:
            self._context.output.print("No messages yet.")
        for message in page.items:
            self._show_message(message)

    def _show_message(self, message: ChatMessage) -> None:
        from rich.text import Text

        who = "you" if message.role == "user" else self._assistant
        style = "bold cyan" if message.role == "user" else "bold green"
        line = Text.assemble((f"{who}> ", style), printable(message.content))
        self._context.output.console.print(line, soft_wrap=True)

    def _show_question(self, question: Any) -> None:
        asked = question if isinstance(question, str) else shorten(question, 2000)
        self._context.output.print(f"{self._assistant} asks: {printable(asked)}")

    # --- turns ------------------------------------------------------------------------------------------

    async def say(self, content: str) -> None:
        """Send a message and print the answer as it arrives. Ctrl-C cancels the turn."""
        sent = await self._messaging.send(self.session.session_id, content)
        with _interrupts() as interrupted:
            streaming = asyncio.ensure_future(self._stream(sent.turn_id))
            stop = asyncio.ensure_future(interrupted.wait())
            await asyncio.wait((streaming, stop), return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not streaming.done():
                await self._cancel(sent.turn_id)
            shown = await streaming
        await self._end(sent.turn_id, shown)

    async def _cancel(self, turn_id: str) -> None:
        from perdure.kernel.errors import Conflict

        with suppress(Conflict):
            await self._messaging.cancel_turn(self.session.session_id, turn_id)

    async def _stream(self, turn_id: str) -> _Answer:
        """Print the text of a turn, piece by piece, until its end."""
        answer = _Answer()
        explaining = asyncio.ensure_future(self._explain_later(turn_id))
        try:
            async for burst in self._connection.threads.stream_run(turn_id):
                explaining.cancel()
                for event in burst:
                    self._show_piece(answer, get_piece(event))
        finally:
            explaining.cancel()
        return answer

    async def _explain_later(self, turn_id: str) -> None:
        """Print why a turn waits, if it stays silent for a while."""
        await asyncio.sleep(EXPLAIN_SECONDS)
        why = await self._connection.diagnostics.why(turn_id)
        if not self._context.as_json:
            warn(f"still waiting: {why.sentence}")

    def _show_piece(self, answer: _Answer, piece: str) -> None:
        if not piece or self._context.as_json:
            return
        if not answer.text:
            self._begin_answer()
        answer.add(piece)
        self._context.output.console.print(printable(piece), end="", markup=False, soft_wrap=True)

    def _begin_answer(self) -> None:
        from rich.text import Text

        if sys.stdout.isatty():
            self._context.output.console.print(Text(f"{self._assistant}> ", style="bold green"), end="")

    async def _end(self, turn_id: str, shown: _Answer) -> None:
        """Print the rest that was not streamed, and how the turn ended."""
        end = await self._connection.threads.join_run(turn_id)
        self._session = await self._messaging.get(self.session.session_id)
        answer = await self._said(turn_id)
        status = end.run.status
        error = None if end.run.error is None else end.run.error.message
        if status in ("error", "timeout"):
            self.code = 1
        if self._context.as_json:
            self._context.output.line(
                {
                    "session_id": self.session.session_id,
                    "turn_id": turn_id,
                    "status": status,
                    "message": answer,
                    "question": self.session.question,
                    "error": error,
                }
            )
            return
        if shown.text:
            self._context.output.print("")
        if answer is not None and answer.strip() != shown.text.strip():
            self._show_whole(answer)
        if status == "interrupted":
            warn("cancelled")
        elif error is not None or status in ("error", "timeout"):
            warn(f"{status}: {error or 'the turn failed'}")
        if self.session.question is not None and not sys.stdin.isatty():
            self._show_question(self.session.question)

    def _show_whole(self, answer: str) -> None:
        self._begin_answer()
        self._context.output.print(printable(answer))

    async def _said(self, turn_id: str) -> str | None:
        page = await self._messaging.history(self.session.session_id, limit=20)
        answers = [
            message for message in page.items if message.turn_id == turn_id and message.role == "assistant"
        ]
        return answers[-1].content if answers else None


def get_piece(event: StreamEvent) -> str:
    """Return the text that an event adds to an answer: part of a message, or text that the agent emits."""
    from perdure.kernel.codec import decode_json

    name = event.event.partition("|")[0]
    if name not in ("messages", "custom"):
        return ""
    data = decode_json(event.body)
    if name == "messages":
        message = data[0] if isinstance(data, list) and data else None
        return _text_in(message) if _is_answer(message) else ""
    return _text_in(data)


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and str(message.get("type", "")).startswith(("ai", "AIMessage"))


def _text_in(data: Any) -> str:
    """Return a text, or the text of an object that has one."""
    if isinstance(data, str):
        return data
    if not isinstance(data, dict):
        return ""
    value = next((data[name] for name in ("content", "text", "token", "delta") if name in data), "")
    if isinstance(value, list):
        return "".join(_text_in(block) for block in value)
    return value if isinstance(value, str) else ""


def _ask(prompt: str) -> str:
    """Read a line from the terminal. Ctrl-C ends the read, not the program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupts() -> Iterator[asyncio.Event]:
    """Yield an event that Ctrl-C sets."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, pressed.set)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
