"""Promise 10: a webhook goes to public, checked addresses alone, and gives nothing away."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.outbox.support import OutboxWithDeliveries, add, open_storage
from tests.outbox.webhooks.support import (
    SECRET,
    Receiver,
    body_for,
    effect_for,
    private_sender,
    receiving,
)
from tests.security.webhook_urls import (
    PRIVATE_ADDRESSES,
    PUBLIC,
    PUBLIC_ADDRESSES,
    REFUSED_URLS,
    TAKEN_URLS,
)
from yarl import URL

from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput
from perdure.outbox.model import Retries, TryLater, Undeliverable, check_webhook_url, mask_target
from perdure.outbox.webhooks.sender import WebhookSender
from perdure.outbox.webhooks.urls import parse_target, refused_address
from perdure.testing.grids import every


@pytest_asyncio.fixture
async def victim() -> AsyncIterator[Receiver]:
    """A service of this machine that no webhook may reach."""
    async with receiving() as receiver:
        yield receiver


def sender_to(*answers: list[str], **settings: Any) -> tuple[WebhookSender, list[str]]:
    """A sender whose name server gives these answers one after the other, and the names it was asked for."""
    left, asked = list(answers), []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return left.pop(0) if len(left) > 1 else left[0]

    return WebhookSender(Settings(**settings), resolve=resolve), asked


# --- URLs and addresses -----------------------------------------------------------------------------------


@every("url", REFUSED_URLS)
async def test_a_url_that_may_lead_inside_is_refused_when_it_is_given_and_when_it_is_used(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_webhook_url(url, allow_private=False, allowed_hosts=())
    assert refused.value.http_status == 422
    sender, asked = sender_to([PUBLIC])
    with pytest.raises(Undeliverable):
        await sender.deliver(effect_for(url))
    assert asked == []


@every("url", TAKEN_URLS)
def test_an_ordinary_url_is_taken_as_it_is(url: str) -> None:
    assert check_webhook_url(url, allow_private=False, allowed_hosts=()) == url


@pytest.mark.parametrize("url", [None, 5, b"http://example.com", ["http://example.com"]])
def test_what_is_no_text_is_refused(url: Any) -> None:
    with pytest.raises(InvalidInput):
        check_webhook_url(url)


@every("address", PRIVATE_ADDRESSES)
def test_no_private_address_passes(address: str) -> None:
    assert refused_address(address, allow_private=False)


@every("address", PUBLIC_ADDRESSES)
def test_public_addresses_pass(address: str) -> None:
    assert refused_address(address, allow_private=False) is None
    assert refused_address(address, allow_private=True) is None


@given(st.ip_addresses(v=4))
def test_every_form_of_a_private_ipv4_address_is_as_private(address: IPv4Address) -> None:
    number = int(address)
    plain = refused_address(str(address), allow_private=False)
    forms = [
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80) | 1),
        IPv6Address((0x2600 << 112) | (0x5EFE << 32) | number),
    ]
    for form in forms:
        assert (refused_address(str(form), allow_private=False) is None) == (plain is None)
    for never in (IPv6Address((0xFFFF << 32) | number), IPv6Address(number)):
        assert refused_address(str(never), allow_private=False)


@given(st.ip_addresses())
def test_nothing_passes_that_is_not_global(address: IPv4Address | IPv6Address) -> None:
    if refused_address(str(address), allow_private=False) is None:
        assert address.is_global
        assert not address.is_multicast


@given(st.text(alphabet=st.sampled_from("htp:/@[]%.#?\\0x127af\u2460 \tlocalhost"), max_size=40))
def test_what_is_taken_is_read_in_one_way_only(text: str) -> None:
    url = "http://" + text
    try:
        check_webhook_url(url)
    except InvalidInput:
        return
    target = parse_target(url)
    read = URL(target.url)
    assert (read.raw_host, read.port, read.user) == (target.host, target.port, None)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "::1", "fd12::1", "100.64.1.1"])
def test_an_operator_may_allow_private_addresses(address: str) -> None:
    assert refused_address(address, allow_private=True) is None
    host = f"[{address}]" if ":" in address else address
    assert check_webhook_url(f"http://{host}:5678/", allow_private=True)
    assert check_webhook_url("http://localhost:3000/", allow_private=True)


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "0.0.0.0", "::"),
        *(
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fec0::1",
        ),
    ],
)
def test_even_then_none_that_hands_out_credentials(address: str) -> None:
    assert refused_address(address, allow_private=True)


def test_an_operator_may_allow_this_machine_alone() -> None:
    for url in ("http://127.0.0.1:1/", "http://localhost:5678/x", "http://[::1]:22/", "http://127.9.9.9:80/"):
        assert check_webhook_url(url, allow_loopback=True) == url
    refused = ("http://10.0.0.1/", "http://169.254.169.254/", "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/")
    for url in (*refused, "http://example.com:5678/"):
        with pytest.raises(InvalidInput):
            check_webhook_url(url, allow_loopback=True)
    with pytest.raises(InvalidInput, match="allowed hosts"):
        check_webhook_url("http://localhost/", allow_loopback=True, allowed_hosts=["example.com"])
    assert refused_address("127.0.0.1", allow_private=False, allow_loopback=True) is None
    assert refused_address("192.168.0.1", allow_private=False, allow_loopback=True)


def test_even_then_no_port_of_the_system() -> None:
    for port in (22, 25, 111, 1023):
        with pytest.raises(InvalidInput, match="port"):
            check_webhook_url(f"http://127.0.0.1:{port}/", allow_private=True)


ALLOWED = (
    "hooks.example.com",
    "*.partner.com",
    "odd.example.com:5678",
    "8.8.8.8",
    "[2606:2800:220:1::1]:9000",
)


@pytest.mark.parametrize(
    "url",
    [
        *("https://hooks.example.com/", "https://HOOKS.example.com./x", "http://a.b.partner.com/"),
        *("http://odd.example.com:5678/", "http://8.8.8.8/", "http://[2606:2800:220:1::1]:9000/"),
    ],
)
def test_a_host_of_the_list_is_allowed_with_the_port_it_names(url: str) -> None:
    assert check_webhook_url(url, allowed_hosts=ALLOWED) == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "https://example.com/",
            "https://evil-hooks.example.com/",
            "http://partner.com/",
            "http://evilpartner.com/",
        ),
        *("http://odd.example.com/", "http://hooks.example.com:5678/", "http://hooks.example.com.evil.com/"),
        *("http://hooks.example.com@evil.com/", "http://8.8.4.4/", "http://localhost/"),
    ],
)
def test_any_other_host_is_refused_when_there_is_a_list(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_webhook_url(url, allowed_hosts=ALLOWED)


def test_a_host_of_the_list_may_not_be_private_for_that() -> None:
    with pytest.raises(InvalidInput):
        check_webhook_url("http://127.0.0.1/", allowed_hosts=("127.0.0.1",))


# --- names and connections --------------------------------------------------------------------------------


@every("address", PRIVATE_ADDRESSES)
async def test_a_name_that_leads_inside_is_refused_before_anything_is_sent(address: str) -> None:
    sender, asked = sender_to([PUBLIC, address])
    with pytest.raises(Undeliverable, match="not a public address"):
        await sender.deliver(effect_for("http://innocent.example/"))
    assert asked == ["innocent.example"]


async def test_a_name_of_this_machine_reaches_nothing(victim: Receiver) -> None:
    sender, _ = sender_to(["127.0.0.1"], webhook_allowed_hosts=(f"innocent.example:{victim.port}",))
    with pytest.raises(Undeliverable, match=r"127\.0\.0\.1 is not a public address"):
        await sender.deliver(effect_for(f"http://innocent.example:{victim.port}/"))
    assert victim.got == []


async def test_a_name_whose_address_changes_after_the_check_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch, victim: Receiver
) -> None:
    """DNS rebinding: public when it is checked, this machine ever after, for whoever asks."""
    went: list[Any] = []

    async def connect(loop: Any, sock: socket.socket, address: Any) -> None:
        went.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    def rebound(*args: Any, **options: Any) -> Any:
        raise AssertionError("the name was looked up a second time")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)
    sender, asked = sender_to([PUBLIC, "2606:2800:220:1::1"], ["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    with pytest.raises(TryLater):
        await sender.deliver(effect_for("http://rebinding.example:8080/"))
    assert asked == ["rebinding.example"]
    assert sorted(address[:2] for address in went) == sorted([(PUBLIC, 8080), ("2606:2800:220:1::1", 8080)])
    with pytest.raises(Undeliverable):
        await sender.deliver(effect_for("http://rebinding.example:8080/"))
    assert len(went) == 2
    assert victim.got == []


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    async with receiving("127.0.0.1") as checked, receiving("127.0.0.2", checked.port) as other:
        answers = iter([["127.0.0.1"], ["127.0.0.2"]])
        sender = private_sender(resolve=lambda host, port: next(answers))
        await sender.deliver(effect_for(f"http://name.example:{checked.port}/"))
    assert (len(checked.got), len(other.got)) == (1, 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int, victim: Receiver) -> None:
    async with receiving() as receiver:
        receiver.answers = [web.Response(status=status, headers={"Location": victim.url + "/secret"})]
        with pytest.raises(Undeliverable, match="redirect"):
            await private_sender().deliver(effect_for(receiver.url))
    assert victim.got == []
    assert len(receiver.got) == 1


async def test_nothing_of_an_answer_is_kept_but_its_status() -> None:
    async with receiving() as receiver:
        receiver.answers = [web.Response(status=500, reason="leaked-reason", text="leaked-body")]
        with pytest.raises(TryLater) as later:
            await private_sender().deliver(effect_for(receiver.url))
    assert "leaked" not in later.value.message


async def test_headers_without_end_are_not_read_without_end() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            for number in range(1 << 20):
                writer.write(b"X-%d: %s\r\n" % (number, b"x" * 1000))
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TryLater):
        await private_sender(deadline=5.0).deliver(effect_for(f"http://127.0.0.1:{port}/"))
    server.close()
    await server.wait_closed()


# --- secrets ----------------------------------------------------------------------------------------------

HIDDEN = [
    "https://user:hidden@example.com/x",
    "https://hidden@example.com/x",
    "https://hidden:@example.com/x",
    "https://example.com/x?token=hidden&a=b",
    "https://u:p@hidden@example.com/",
    "http://user:hidden@[::1",
]


@every("url", HIDDEN)
def test_credentials_are_masked(url: str) -> None:
    assert "hidden" not in mask_target(url)
    with pytest.raises(InvalidInput) as refused:
        check_webhook_url(url, allowed_hosts=("another.example",))
    assert "hidden" not in refused.value.message


async def test_credentials_stand_in_no_log_no_list_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    storage = open_storage(":memory:")
    async with receiving() as receiver:
        receiver.answers = [500, 404]
        url = receiver.url.replace("//", "//user:hidden@") + "/?token=hidden"
        retries = Retries(first=1000.0)
        outbox = OutboxWithDeliveries(storage, [private_sender(webhook_secret=SECRET)], retries=retries)
        (first,) = await add(storage, body_for(url), consumer="webhook", target=url)
        await outbox.start()
        await receiver.has(1)
        (second,) = await add(storage, body_for(url), consumer="webhook", target=url)
        await receiver.has(2)
        await outbox.stop()
    shown = [*await outbox.list(), await outbox.get(first), await outbox.get(second)]
    await storage.close()
    assert {effect.status for effect in shown} == {"pending", "dead"}
    everything = repr(shown) + caplog.text
    assert "answered 404" in everything
    assert "hidden" not in everything
    assert SECRET not in everything
    assert "Basic" not in everything


def test_a_secret_shows_in_no_representation() -> None:
    settings = Settings(webhook_secret=SECRET)
    assert SECRET not in repr(WebhookSender(settings))
