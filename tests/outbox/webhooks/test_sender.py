"""Sending of webhooks: requests, the meaning of each answer, and connection errors."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web
from tests.kernel.support import until
from tests.outbox.webhooks.support import (
    SECRET,
    effect_for,
    private_sender,
    raw_effect,
    receiving,
)

from perdure.kernel.version import VERSION
from perdure.outbox.model import TryLater, Undeliverable
from perdure.outbox.webhooks import verify
from perdure.outbox.webhooks.sender import HOST_SHARE, LONGEST_RETRY_AFTER


async def test_a_webhook_arrives_signed_with_its_id_and_the_time_it_was_sent() -> None:
    async with receiving() as receiver:
        sender = private_sender(webhook_secret=SECRET)
        await sender.deliver(effect_for(receiver.url + "/hook?a=1", run_id="r-1", values={"n": [1, None]}))
    (got,) = receiver.got
    assert got.path == "/hook?a=1"
    assert got.headers["webhook-id"] == "effect-1"
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["User-Agent"] == "perdure/" + VERSION
    content = verify(got.body, got.headers, SECRET)
    sent_at = datetime.fromisoformat(content.pop("webhook_sent_at"))
    assert abs(sent_at.timestamp() - time.time()) < 60
    assert content == {"run_id": "r-1", "values": {"n": [1, None]}}


async def test_without_a_secret_it_is_not_signed() -> None:
    async with receiving() as receiver:
        await private_sender().deliver(effect_for(receiver.url))
    names = {name.lower() for name in receiver.got[0].headers}
    assert "webhook-signature" not in names
    assert "x-perdure-signature" not in names


async def test_credentials_of_the_url_are_sent_as_basic_authentication() -> None:
    async with receiving() as receiver:
        url = receiver.url.replace("//", "//us%40er:p%3Aw@")
        await private_sender().deliver(effect_for(url))
    kind, _, encoded = receiver.got[0].headers["Authorization"].partition(" ")
    assert (kind, base64.b64decode(encoded)) == ("Basic", b"us@er:p:w")


async def test_a_name_is_sent_as_the_host_although_the_address_is_pinned() -> None:
    async with receiving() as receiver:
        sender = private_sender(resolve=lambda host, port: ["127.0.0.1"])
        await sender.deliver(effect_for(f"http://Hooks.Example.com:{receiver.port}/"))
    assert receiver.got[0].headers["Host"] == f"hooks.example.com:{receiver.port}"


async def test_tls_is_made_with_the_name_and_not_with_the_address() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = private_sender(resolve=lambda host, port: ["127.0.0.1"])
    with pytest.raises(TryLater, match=f"hooks.example.com:{port}: "):
        await sender.deliver(effect_for(f"https://hooks.example.com:{port}/"))
    assert b"hooks.example.com" in heard.get_nowait()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_success_is_a_delivery(status: int) -> None:
    async with receiving() as receiver:
        receiver.answers = [status]
        await private_sender().deliver(effect_for(receiver.url))


@pytest.mark.parametrize(
    "status", [301, 302, 303, 307, 308, 304, 400, 401, 403, 404, 405, 410, 413, 422, 451]
)
async def test_a_refusal_is_final(status: int) -> None:
    async with receiving() as receiver:
        receiver.answers = [status]
        with pytest.raises(Undeliverable, match=str(status)):
            await private_sender().deliver(effect_for(receiver.url))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_trouble_is_tried_again(status: int) -> None:
    async with receiving() as receiver:
        receiver.answers = [status]
        with pytest.raises(TryLater, match=str(status)) as later:
            await private_sender().deliver(effect_for(receiver.url))
    assert (later.value.charged, later.value.seconds) == (True, 0.0)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        ("999999999999", LONGEST_RETRY_AFTER, LONGEST_RETRY_AFTER),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("", 0, 0),
        (timedelta(seconds=1000), 800, 1000),
        (timedelta(days=400), LONGEST_RETRY_AFTER, LONGEST_RETRY_AFTER),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", 0, 0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_heeded_up_to_a_bound(
    status: int, header: str | timedelta, least: float, most: float
) -> None:
    if isinstance(header, timedelta):
        header = format_datetime(datetime.now(UTC) + header, usegmt=True)
    async with receiving() as receiver:
        receiver.answers = [web.Response(status=status, headers={"Retry-After": header})]
        with pytest.raises(TryLater) as later:
            await private_sender().deliver(effect_for(receiver.url))
    assert least <= later.value.seconds <= most


async def test_an_answer_that_never_ends_is_not_read() -> None:
    written = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while written < 1 << 30:
                await response.write(b"x" * 65536)
                written += 65536
        except ConnectionError:
            pass
        return response

    async with receiving() as receiver:
        receiver.answers = [flood]
        await private_sender().deliver(effect_for(receiver.url))
    assert written < 64 << 20


async def test_an_answer_that_is_compressed_is_left_alone() -> None:
    async with receiving() as receiver:
        receiver.answers = [web.Response(body=b"not gzip", headers={"Content-Encoding": "gzip"})]
        await private_sender().deliver(effect_for(receiver.url))


async def test_a_server_that_does_not_answer_is_left_at_the_deadline() -> None:
    gone = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await gone.wait()
        return web.Response()

    async with receiving() as receiver:
        receiver.answers = [hang]
        with pytest.raises(TryLater, match=r"no answer from 127\.0\.0\.1 within 0\.2 s"):
            await private_sender(deadline=0.2).deliver(effect_for(receiver.url))
        gone.set()


async def test_a_name_server_that_does_not_answer_is_left_at_the_deadline() -> None:
    answered = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        answered.wait(20)
        return ["127.0.0.1"]

    with pytest.raises(TryLater, match="within"):
        await private_sender(deadline=0.05, resolve=slow).deliver(effect_for("http://slow.example/"))
    answered.set()


async def test_a_server_that_is_not_there_is_tried_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TryLater, match=f"127.0.0.1:{port}: Connect"):
            await private_sender().deliver(effect_for(f"http://127.0.0.1:{port}/"))


async def test_a_name_that_does_not_exist_is_tried_again() -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(TryLater, match=r"gone\.example has no address"):
        await private_sender(resolve=unknown).deliver(effect_for("http://gone.example/"))
    with pytest.raises(TryLater, match=r"gone\.example has no address"):
        await private_sender(resolve=lambda host, port: []).deliver(effect_for("http://gone.example/"))


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"\0" * 100])
async def test_what_does_not_speak_http_is_tried_again(answer: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TryLater, match=f"127.0.0.1:{port}"):
        await private_sender().deliver(effect_for(f"http://127.0.0.1:{port}/?token=hidden"))
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "[]",
        "5",
        "not json",
        '{"url":"http://x.example"}',
        '{"url":5,"payload":{}}',
        '{"payload":{}}',
    ],
)
async def test_an_effect_that_is_no_webhook_is_refused(body: str | None) -> None:
    with pytest.raises(Undeliverable):
        await private_sender().deliver(raw_effect(body))


async def test_a_slow_host_leaves_room_for_others() -> None:
    gone = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await gone.wait()
        return web.Response()

    async with receiving() as slow, receiving() as quick:
        slow.answers = [hang] * HOST_SHARE
        sender = private_sender(resolve=lambda host, port: ["127.0.0.1"])
        url = f"http://slow.example:{slow.port}/"
        waiting = [asyncio.create_task(sender.deliver(effect_for(url))) for _ in range(HOST_SHARE)]
        await slow.has(HOST_SHARE)
        with pytest.raises(TryLater) as later:
            await sender.deliver(effect_for(url))
        assert not later.value.charged
        await sender.deliver(effect_for(f"http://quick.example:{quick.port}/"))
        gone.set()
        await asyncio.gather(*waiting)
        await sender.deliver(effect_for(url))
    assert len(slow.got) == HOST_SHARE + 1


async def test_no_cookie_and_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        receiver.answers = [web.Response(headers={"Set-Cookie": "a=b"})]
        sender = private_sender()
        await sender.deliver(effect_for(receiver.url))
        await sender.deliver(effect_for(receiver.url))
    assert proxy.got == []
    assert "Cookie" not in receiver.got[1].headers


async def test_many_at_once_leave_no_connection_behind(caplog: pytest.LogCaptureFixture) -> None:
    tasks = asyncio.all_tasks()
    async with receiving() as receiver:
        sender = private_sender(resolve=lambda host, port: ["127.0.0.1"])
        urls = [f"http://h{number}.example:{receiver.port}/" for number in range(30)]
        await asyncio.gather(*(sender.deliver(effect_for(url)) for url in urls))
    assert len(receiver.got) == 30
    await until(lambda: asyncio.all_tasks() == tasks)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
