"""Hides the secrets of a server from other processes of its user: its commands and isolated agents.

Linux shows the initial environment of a process in `/proc/PID/environ`, even after a variable was removed. A
server, a worker and a supervisor overwrite it, and pass secrets through sockets. They forbid debuggers,
because these read memory. Only the command does this; programs that embed perdure are not changed.

This makes an attack harder. A process of the same user can still write the files of that user.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from perdure.kernel.config import Settings, mask_url, secret_variables
from perdure.kernel.errors import StartRefused

logger = logging.getLogger(__name__)

PR_SET_DUMPABLE: Final = 4
HEAD_BYTES: Final = 4
MAX_SECRETS: Final = 1 << 20
_MASK: Final = b"***"
_START_OF_ARGUMENTS: Final = 45
"""Index in `/proc/self/stat` of the arguments' address, counted after the program's name."""


def protect_process(settings: Settings) -> None:
    """Hide the environment and the passwords in the arguments of this process, and forbid debuggers."""
    if sys.platform != "linux":
        return
    try:
        hide_environment()
    except (OSError, ValueError, AttributeError) as error:
        logger.warning("the environment of this process cannot be hidden: %s", error)
    if not settings.allow_core_dumps:
        _forbid_dumps()


def hide_environment() -> None:
    """Overwrite the content of `/proc/self/environ`; the variables keep their values for this process."""
    blocks = _find_blocks()
    # First move the values to the heap, where `getenv` and child processes find them.
    for name, value in list(os.environb.items()):
        os.putenv(name, value)
    ctypes.memset(blocks.environment, 0, blocks.environment_end - blocks.environment)
    before = ctypes.string_at(blocks.arguments, blocks.arguments_end - blocks.arguments)
    after = mask_arguments(before)
    if after != before:
        ctypes.memmove(blocks.arguments, after, len(after))


class _Blocks(NamedTuple):
    """Addresses of this process's initial arguments and environment."""

    arguments: int
    arguments_end: int
    environment: int
    environment_end: int


def _find_blocks() -> _Blocks:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    blocks = _Blocks(*map(int, fields[_START_OF_ARGUMENTS : _START_OF_ARGUMENTS + 4]))
    if not 0 < blocks.arguments <= blocks.arguments_end <= blocks.environment <= blocks.environment_end:
        raise ValueError("/proc/self/stat has no valid addresses")
    return blocks


def mask_arguments(block: bytes) -> bytes:
    """Mask the passwords in arguments separated by NUL, and keep the length of each argument."""
    return b"\0".join(_mask_argument(argument) for argument in block.split(b"\0"))


def _mask_argument(argument: bytes) -> bytes:
    masked = mask_url(argument.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if masked == argument:
        return argument
    padded = masked.replace(_MASK, b"*" * max(len(_MASK) + len(argument) - len(masked), 0), 1)
    return padded[: len(argument)].ljust(len(argument), b"*")


def _forbid_dumps() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        logger.warning("debuggers cannot be forbidden: %s", os.strerror(ctypes.get_errno()))


# --- processes that perdure starts ------------------------------------------------------------------------


class SplitEnvironment(NamedTuple):
    """The environment of a process, and the secrets that it receives through a socket."""

    open: dict[str, str]
    secrets: dict[str, str]


def split_environment(environment: Mapping[str, str]) -> SplitEnvironment:
    """Separate the secrets from an environment."""
    names = secret_variables()
    secrets = {name: value for name, value in environment.items() if name in names}
    return SplitEnvironment({k: v for k, v in environment.items() if k not in secrets}, secrets)


def encode_secrets(secrets: Mapping[str, str]) -> bytes:
    """Encode secrets for `receive_secrets`."""
    body = msgspec.json.encode(dict(secrets))
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def receive_secrets(descriptor: int) -> None:
    """Receive the secrets from the supervisor, and set them as variables of this process."""
    connection = socket.socket(fileno=descriptor)
    try:
        size = int.from_bytes(_read_exactly(connection, HEAD_BYTES), "big")
        if size > MAX_SECRETS:
            raise StartRefused("the supervisor sends no secrets")
        os.environ.update(msgspec.json.decode(_read_exactly(connection, size), type=dict[str, str]))
    finally:
        connection.detach()


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise StartRefused("the supervisor has ended")
        data += part
    return data
