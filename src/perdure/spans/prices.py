"""Prices of models: tables by model name, from files that people edit."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from perdure.kernel.errors import InvalidInput

FILE_NAME = "prices.toml"
ENDS = ("-", ":", "@")
"""Characters that may follow a table's name in a longer model name."""
NANOS_A_MILLIONTH = 1000
"""1 dollar for 1 million tokens is 1,000 billionths of a dollar for a token."""
REMEMBERED = 10_000

Dollars = Annotated[float, Meta(ge=0, le=1e6)]


class Tokens(NamedTuple):
    """Tokens of calls; `cached` is a part of `input`."""

    input: int
    output: int
    cached: int


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of 1 million tokens, in US dollars; without `cached`, cached input costs as much as other
    input."""

    input: Dollars
    output: Dollars
    cached: Dollars | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    models: dict[str, Price] = {}


class Prices:
    """The prices of a process: prices of a file, then the shipped prices."""

    def __init__(self, models: Mapping[str, Price] | None = None) -> None:
        self._table: dict[str, Price] = {}
        self._prices: dict[str, Price | None] = {}
        self.use(models or {})

    def use(self, models: Mapping[str, Price]) -> None:
        """Use these prices, and the shipped prices for all other models."""
        self._table = {**shipped(), **{name.lower(): price for name, price in models.items()}}
        self._prices = {}

    def of(self, model: str) -> Price | None:
        """Return the price of a model: the price of the longest name in the table that its name starts with.

        A provider before a slash, as in `openai/gpt-4o`, is ignored if the whole name has no price.
        """
        try:
            return self._prices[model]
        except KeyError:
            pass
        name = model.lower()
        price = self._longest(name) or self._longest(name.rpartition("/")[2])
        if len(self._prices) >= REMEMBERED:
            self._prices = {}
        self._prices[model] = price
        return price

    def _longest(self, name: str) -> Price | None:
        for end in range(len(name), 0, -1):
            if end == len(name) or name[end] in ENDS:
                price = self._table.get(name[:end])
                if price is not None:
                    return price
        return None

    def cost(self, model: str, tokens: Tokens) -> int | None:
        """Return the cost of calls of a model in billionths of a dollar; None if the model has no price."""
        price = self.of(model) if model else None
        if price is None:
            return None
        cached = price.input if price.cached is None else price.cached
        plain = tokens.input - tokens.cached
        dollars = plain * price.input + tokens.cached * cached + tokens.output * price.output
        return round(dollars * NANOS_A_MILLIONTH)


@cache
def shipped() -> Mapping[str, Price]:
    """Return the prices that perdure ships."""
    return _read(files("perdure.spans").joinpath(FILE_NAME).read_text("utf-8"), "the shipped prices")


def read_prices(path: Path) -> Mapping[str, Price]:
    """Return the prices in a file; errors contain its path."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: it is not UTF-8") from None
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or type(error).__name__}") from None
    return _read(text, str(path))


def _read(text: str, what: str) -> Mapping[str, Price]:
    try:
        return msgspec.convert(tomllib.loads(text), _File).models
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{what}: {error}") from None
