"""Faults below the storage that a scenario must find: commits that are acknowledged and lost, or done twice.

`python -m tests.chaos.planted` is `perdure` with the fault that the environment names.
"""

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import msgspec

from perdure.kernel.storage.port import Operation, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage

Manner = Literal["lost", "doubled"]
MANNERS = get_args(Manner)
ONE_IN = 500
VARIABLE = "PERDURE_CHAOS_PLANTED"


class Planted(msgspec.Struct):
    """A fault: how commits fail, and one in how many."""

    manner: Manner
    one_in: int = ONE_IN
    seed: int = 0
    operation: str | None = None
    """The first commit of this operation that does something fails, and no other."""

    @property
    def environment(self) -> dict[str, str]:
        """How the processes of a scenario hear of it."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


class _Dropped(Exception):
    """Rolls a transaction back, and brings its result out of it."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


class _Fault:
    """Counts the commits of a process, and fails the chosen ones."""

    def __init__(self, planted: Planted) -> None:
        self._planted = planted
        self._random = random.Random(f"{planted.seed} {os.getpid()}")
        self._seen = self._next = 0
        self._over = False

    def strikes(self, call: tuple[Any, ...]) -> bool:
        """Count a commit; one in each row of `one_in` is chosen."""
        if self._planted.operation is not None:
            return not self._over and self._planted.operation in _names(call)
        place = self._seen % self._planted.one_in
        if place == 0:
            self._next = self._random.randrange(self._planted.one_in)
        self._seen += 1
        return place == self._next

    def under(self, run: Any) -> Any:
        """A storage's `run` with the fault in it."""

        async def planted(storage: Any, operation: Operation[..., Any], /, *args: Any, **more: Any) -> Any:
            if not self.strikes((operation, *args)):
                return await run(storage, operation, *args, **more)
            if self._planted.manner == "doubled":
                result = await run(storage, operation, *args, **more)
                self._over = _has_effect(result)
                return await run(storage, operation, *args, **more) if self._over else result

            async def dropped(tx: Tx, *given: Any) -> Any:
                result = await operation(tx, *given)
                if _has_effect(result):
                    raise _Dropped(result)
                return result

            try:
                return await run(storage, dropped, *args, **more)
            except _Dropped as lost:
                self._over = True
                return lost.result

        return planted


def _names(call: tuple[Any, ...]) -> list[str]:
    """The names of the functions in a call; one that is carried out under keys is in a tuple."""
    parts = [each for part in call for each in (part if isinstance(part, tuple) else (part,))]
    return [getattr(part, "__name__", "") for part in parts]


def _has_effect(result: Any) -> bool:
    """Whether a result says that something was done, and not that there was nothing to do."""
    return not isinstance(result, list) or any(each != [] for each in result)


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """Let the storages of this process have the fault."""
    under = _Fault(fault).under
    storages: tuple[Any, ...] = (SqliteStorage, PostgresStorage)
    before = [storage.run for storage in storages]
    for storage in storages:
        storage.run = under(storage.run)
    try:
        yield
    finally:
        for storage, run in zip(storages, before, strict=True):
            storage.run = run


@contextmanager
def planted_by_environment(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Let the storages of this process have the fault that the environment names, if any."""
    text = environment.get(VARIABLE)
    if text is None:
        yield
        return
    with planted(msgspec.json.decode(text, type=Planted)):
        yield


if __name__ == "__main__":
    from perdure.cli import main

    with planted_by_environment():
        main()
