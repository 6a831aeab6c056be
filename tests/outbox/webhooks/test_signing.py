"""Signatures: a receiver verifies what was sent, and nothing else passes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.errors import InvalidInput
from perdure.outbox.webhooks import InvalidSignature, verify
from perdure.outbox.webhooks.signing import key_of, signed_headers

NOW = 1_800_000_000
BODY = b'{"run_id":"r-1"}'
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def headers(secret: str = SECRET, body: bytes = BODY, at: int = NOW) -> dict[str, str]:
    return signed_headers(key_of(secret), "msg_1", at, body)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification's reference library."""
    payload = b'{"test": 2432232314}'
    signed = signed_headers(key_of(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, payload)
    assert signed["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert verify(payload, signed, SECRET, now=1614265330) == {"test": 2432232314}


def test_the_second_signature_is_the_same_in_hexadecimal() -> None:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.new(key, b"msg_1." + str(NOW).encode() + b"." + BODY, hashlib.sha256).hexdigest()
    assert headers()["X-Perdure-Signature"] == f"t={NOW},v1={digest}"


@given(st.binary(max_size=200), st.text(min_size=1).filter(lambda text: not text.startswith("whsec_")))
def test_any_body_and_any_secret_verify(content: bytes, secret: str) -> None:
    body = b'"' + base64.b64encode(content) + b'"'
    try:
        key = key_of(secret)
    except UnicodeEncodeError:
        return
    signed = signed_headers(key, "msg_1", NOW, body)
    assert verify(body, signed, secret, now=NOW) == base64.b64encode(content).decode()


def test_header_names_come_in_any_case_and_the_body_as_text() -> None:
    shouted = {name.upper(): value for name, value in headers().items()}
    assert verify(BODY.decode(), shouted, SECRET, now=NOW + 299) == {"run_id": "r-1"}


def test_one_of_several_signatures_and_one_of_several_secrets_is_enough() -> None:
    signed = headers()
    signed["webhook-signature"] = "v1,AAAA v2,whatever " + signed["webhook-signature"]
    assert verify(BODY, signed, ["old secret", SECRET], now=NOW)


@pytest.mark.parametrize(
    ("body", "secret", "change"),
    [
        (BODY + b" ", SECRET, {}),
        (BODY, "another secret", {}),
        (BODY, [], {}),
        (BODY, SECRET, {"webhook-id": "msg_2"}),
        (BODY, SECRET, {"webhook-timestamp": str(NOW + 1)}),
        (BODY, SECRET, {"webhook-timestamp": "soon"}),
        (BODY, SECRET, {"webhook-timestamp": "1" * 400}),
        (BODY, SECRET, {"webhook-timestamp": "\u0661"}),
        (BODY, SECRET, {"webhook-signature": ""}),
        (BODY, SECRET, {"webhook-signature": "v1,"}),
        (BODY, SECRET, {"webhook-signature": "v1,n\u00f6"}),
        (BODY, SECRET, {"webhook-signature": "v1"}),
    ],
)
def test_whatever_is_not_as_it_was_signed_is_refused(
    body: bytes, secret: str | list[str], change: dict[str, str]
) -> None:
    with pytest.raises(InvalidSignature) as refused:
        verify(body, headers() | change, secret, now=NOW)
    assert refused.value.http_status == 401


def test_a_version_that_is_not_known_is_refused() -> None:
    signed = headers()
    signed["webhook-signature"] = signed["webhook-signature"].replace("v1,", "v0,")
    with pytest.raises(InvalidSignature):
        verify(BODY, signed, SECRET, now=NOW)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_named(missing: str) -> None:
    signed = headers()
    del signed[missing]
    with pytest.raises(InvalidSignature, match=missing):
        verify(BODY, signed, SECRET, now=NOW)


@pytest.mark.parametrize("off", [-301, 301])
def test_what_was_signed_long_ago_is_refused(off: int) -> None:
    with pytest.raises(InvalidSignature, match="300"):
        verify(BODY, headers(at=NOW + off), SECRET, now=NOW)
    assert verify(BODY, headers(at=NOW + off), SECRET, tolerance=400, now=NOW)


def test_without_a_secret_nothing_is_signed() -> None:
    assert signed_headers(None, "msg_1", NOW, BODY) == {"webhook-id": "msg_1", "webhook-timestamp": str(NOW)}


def test_a_secret_that_is_not_base64_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidInput) as refused:
        key_of("whsec_n*t base64")
    assert "n*t" not in refused.value.message


def test_a_receiver_needs_no_http_library() -> None:
    program = "import sys, perdure.outbox.webhooks; print('aiohttp' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
