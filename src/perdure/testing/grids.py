"""A grid of cases as one test, for rules so cheap that a test per case would cost more."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

__all__ = ["every"]

Test = Callable[..., Any]


def every(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the cases in turn in one test, like `pytest.mark.parametrize` otherwise; a failure names its case.

    The cases share their fixtures, so the test must not depend on the state after an earlier case.
    """
    keys = (names,) if isinstance(names, str) else names
    given = [dict(zip(keys, case if len(keys) > 1 else (case,), strict=True)) for case in cases]
    assert given, "there are no cases"

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for case in given:
                try:
                    test(*args, **fixtures, **case)
                except BaseException as error:
                    error.add_note(f"case: {case}")
                    raise

        @wraps(test)
        async def run_async(*args: Any, **fixtures: Any) -> None:
            for case in given:
                try:
                    await test(*args, **fixtures, **case)
                except BaseException as error:
                    error.add_note(f"case: {case}")
                    raise

        chosen: Any = run_async if inspect.iscoroutinefunction(test) else run
        # Pytest treats every parameter in the signature as a fixture.
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        chosen.__signature__ = signature.replace(parameters=left)
        result: Test = chosen
        return result

    return decorate
