"""The rules of access that need no database."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import errors
from perdure.access.model import Token, build_secret, fits, hash_secret, is_live, new_token, parse_token_id
from perdure.service.audit import objects_text
from perdure.service.callers import SCOPES, allows

TOKEN_ID = "0123456789abcdef"
CHANCE = "a-B_" + "x" * 39


@pytest.mark.parametrize("needed", SCOPES)
def test_admin_allows_everything(needed: str) -> None:
    assert allows({"admin"}, needed)


@pytest.mark.parametrize("held", ["read", "write", "worker"])
@pytest.mark.parametrize("needed", SCOPES)
def test_the_others_allow_only_themselves(held: str, needed: str) -> None:
    assert allows([held], needed) == (held == needed)


def test_what_is_public_needs_nothing() -> None:
    assert allows((), None)
    assert not allows((), "read")


def test_a_secret_tells_its_token() -> None:
    secret = build_secret(TOKEN_ID, CHANCE)
    assert secret == f"pdr_{TOKEN_ID}_{CHANCE}"
    assert parse_token_id(secret) == TOKEN_ID


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "pdr_",
        f"pdr_{TOKEN_ID}",
        f"pdr_{TOKEN_ID}_{CHANCE[:-1]}",
        f"pdr_{TOKEN_ID}_{CHANCE}x",
        f"pdr_{TOKEN_ID}_{CHANCE}\n",
        f"PDR_{TOKEN_ID}_{CHANCE}",
        f"pdr_{TOKEN_ID.upper()}_{CHANCE}",
        f"pdr_{TOKEN_ID}_{'é' * 43}",
        "\udc80\0",
    ],
)
def test_what_is_no_secret_tells_nothing(secret: str) -> None:
    assert parse_token_id(secret) is None


def test_a_hash_fits_its_own_secret_only() -> None:
    stored = hash_secret(build_secret(TOKEN_ID, CHANCE))
    assert len(stored) == 64
    assert fits(hash_secret(build_secret(TOKEN_ID, CHANCE)), stored)
    assert not fits(hash_secret(build_secret(TOKEN_ID, CHANCE[:-1] + "y")), stored)


def test_a_life_ends_with_its_time_or_by_hand() -> None:
    token = Token(token_id=TOKEN_ID, name="n", scopes=["read"], namespaces=["*"], create_time=100.0)
    assert is_live(token, 1e12)
    assert is_live(token.model_copy(update={"expire_time": 200.0}), 199.9)
    assert not is_live(token.model_copy(update={"expire_time": 200.0}), 200.0)
    assert not is_live(token.model_copy(update={"revoke_time": 150.0}), 120.0)


def asked(**given: Any) -> Any:
    values = {"name": "ci", "scopes": ["read"], "namespaces": ["a"], "expires_in": None}
    return new_token(TOKEN_ID, "secret", **{**values, **given})


def test_what_is_asked_for_is_put_in_order() -> None:
    token = asked(scopes=["write", "read", "write"], namespaces=("a", "*", "b"), expires_in=1.5)
    assert (token.scopes, token.namespaces, token.lifetime) == (("write", "read"), ("*",), 1_500_000)


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": " "},
        {"name": None},
        {"name": "x" * 201},
        {"name": "a\0b"},
        {"scopes": []},
        {"scopes": "read"},
        {"scopes": ["root"]},
        {"scopes": [1]},
        {"scopes": None},
        {"namespaces": []},
        {"namespaces": "default"},
        {"namespaces": [""]},
        {"namespaces": [str(number) for number in range(101)]},
        {"expires_in": 0},
        {"expires_in": -1},
        {"expires_in": True},
        {"expires_in": "soon"},
        {"expires_in": float("nan")},
        {"expires_in": 1e300},
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInput):
        asked(**given)


def test_an_entry_names_a_few_objects() -> None:
    assert objects_text(["a"]) == "a"
    assert objects_text(["b", "a", "b"]) == "b,a"
    assert objects_text([str(number) for number in range(50)]).count(",") == 19
