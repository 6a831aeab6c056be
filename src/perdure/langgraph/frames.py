"""Storage of pandas DataFrames of a state in Arrow's format. Needs `perdure[dataframes]`.

A value that contains DataFrames, in dictionaries or lists, has its own form. Its data also has the names of
the columns and the number of rows, because only these are shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ormsgpack

from perdure.checkpoints.view import FRAME, FRAMES

INSTALL = "pip install 'perdure[dataframes]'"


def is_frame(value: Any) -> bool:
    """Return whether a value is a pandas DataFrame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ()))


def shown(frame: Any) -> dict[str, Any]:
    """Return the part of a DataFrame that is shown."""
    return {"columns": [str(column) for column in frame.columns], "rows": len(frame)}


def dump(value: Any) -> tuple[str, bytes]:
    """Serialize a value that contains DataFrames."""
    from langgraph.checkpoint.serde.jsonplus import _msgpack_default, _option

    reasons: list[Exception] = []

    def default(part: Any) -> Any:
        try:
            return ormsgpack.Ext(FRAME, _packed(part)) if is_frame(part) else _msgpack_default(part)
        except (TypeError, ValueError) as error:
            # ormsgpack raises its own error, which names only the type.
            reasons.append(error)
            raise

    try:
        return FRAMES, ormsgpack.packb(value, default=default, option=_option)
    except TypeError as error:
        raise (reasons[0] if reasons else error) from None


def load(body: bytes, revive: Callable[[int, bytes], Any]) -> Any:
    """Deserialize a value; `revive` creates objects other than DataFrames."""

    def hook(code: int, data: bytes) -> Any:
        return _unpacked(data) if code == FRAME else revive(code, data)

    return ormsgpack.unpackb(body, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)


def _packed(frame: Any) -> bytes:
    pyarrow = _pyarrow()
    try:
        table = pyarrow.Table.from_pandas(frame)
    except pyarrow.ArrowException as error:
        raise TypeError(f"a DataFrame has a column that Arrow cannot hold: {error}") from error
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    summary = shown(frame)
    return ormsgpack.packb([summary["columns"], summary["rows"], sink.getvalue().to_pybytes()])


def _unpacked(data: bytes) -> Any:
    _, _, body = ormsgpack.unpackb(data)
    return _pyarrow().ipc.open_stream(body).read_all().to_pandas()


def _pyarrow() -> Any:
    try:
        import pandas  # noqa: F401 - Arrow needs it to create a DataFrame
        import pyarrow
    except ModuleNotFoundError as error:
        raise TypeError(f"a DataFrame in a state needs pandas and pyarrow: {INSTALL}") from error
    return pyarrow
