"""TLS for HTTP and gRPC: certificates of both sides, their renewal, and unusable files."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.certificates import Authority, Pair

from perdure import InMemoryLightningStore
from perdure.client.grpc import GrpcMemory
from perdure.client.grpc.connection import TlsFailure
from perdure.client.native import PerdureClient
from perdure.client.tls import ClientTls
from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput, StartRefused, Unreachable
from perdure.runtime.app import App
from perdure.runtime.tls import Tls
from perdure.server.grpc.server import GrpcServer
from perdure.server.http.server import HttpServer
from perdure.server.table import build_application


class Secured:
    """A server with TLS, over HTTP and over gRPC."""

    def __init__(self, app: App, http: HttpServer, rpc: GrpcServer) -> None:
        self.app, self.http = app, http
        self.address = f"127.0.0.1:{rpc.port}"

    async def over_http(self, tls: ClientTls) -> str:
        client = PerdureClient(self.http.url, retry_delays=(), patience=0.0, tls=tls)
        try:
            return str((await client.memory.get_events()).has_more)
        finally:
            await client.close()

    async def over_grpc(self, tls: ClientTls | None) -> str:
        async with GrpcMemory(self.address, tls=tls, connect_timeout=2.0, patience=0.0) as memory:
            return await memory.health()

    async def certificate(self, ca: Path) -> dict[str, Any]:
        """Return the certificate that a new connection receives."""
        context = ssl.create_default_context(cafile=ca)
        _, writer = await asyncio.open_connection("127.0.0.1", self.http.port, ssl=context)
        found: dict[str, Any] = writer.get_extra_info("peercert")
        writer.close()
        await writer.wait_closed()
        return found


@asynccontextmanager
async def secured(pair: Pair, client_ca: Path | None = None) -> AsyncIterator[Secured]:
    settings = Settings(
        tls_cert_file=str(pair.certificate),
        tls_key_file=str(pair.key),
        tls_client_ca_file=None if client_ca is None else str(client_ca),
    )
    async with InMemoryLightningStore() as store:
        app = App(store, settings)
        rpc = GrpcServer(app, port=0)
        await rpc.start()
        try:
            async with HttpServer(build_application(app), tls=app.tls) as http:
                yield Secured(app, http, rpc)
        finally:
            await rpc.stop()


async def test_both_protocols_are_served_with_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with secured(authority.issue()) as server:
        assert server.http.url.startswith("https://")
        trusting = ClientTls(authority.file)
        assert await server.over_http(trusting) == "False"
        assert await server.over_grpc(trusting) == "SERVING"
        with pytest.raises(Unreachable):
            await server.over_http(ClientTls())
        with pytest.raises(TlsFailure) as caught:
            await server.over_grpc(ClientTls(Authority(tmp_path, "other").file))
        assert caught.value.hint == "check the certificates of both sides"
        with pytest.raises(Unreachable):
            await server.over_grpc(None)


async def test_with_an_authority_for_clients_only_its_clients_get_in(tmp_path: Path) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    mine, stranger = clients.issue("client"), Authority(tmp_path, "else").issue("stranger")
    async with secured(authority.issue(), clients.file) as server:
        known = ClientTls(authority.file, *mine)
        assert await server.over_http(known) == "False"
        assert await server.over_grpc(known) == "SERVING"
        for unknown in (ClientTls(authority.file), ClientTls(authority.file, *stranger)):
            with pytest.raises(Unreachable):
                await server.over_http(unknown)
            with pytest.raises(Unreachable):
                await server.over_grpc(unknown)


async def test_a_renewed_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    """Replace the files by those of another authority, and reload them."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    pair, renewed = old.issue(), new.issue("renewed")
    async with secured(pair) as server:
        tls = server.app.tls
        assert tls is not None
        assert await tls.reload(server.app.settings) is None
        before = await server.certificate(old.file)
        shutil.copy(renewed.certificate, pair.certificate)
        with pytest.raises(InvalidInput, match="cannot be used"):
            await tls.reload(server.app.settings)
        assert await server.over_http(ClientTls(old.file)) == "False"
        shutil.copy(renewed.key, pair.key)
        assert str(pair.certificate) in str(await tls.reload(server.app.settings))
        assert (await server.certificate(new.file))["serialNumber"] != before["serialNumber"]
        assert await server.over_grpc(ClientTls(new.file)) == "SERVING"
        with pytest.raises(TlsFailure):
            await server.over_grpc(ClientTls(old.file))
        for change in ({"tls_cert_file": None, "tls_key_file": None}, {"tls_client_ca_file": str(old.file)}):
            with pytest.raises(InvalidInput, match="without a restart"):
                await tls.reload(msgspec.structs.replace(server.app.settings, **change))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_key_file": "key"}, "tls_key_file needs tls_cert_file"),
        ({"tls_client_ca_file": "ca"}, "tls_client_ca_file needs tls_cert_file"),
        ({"tls_cert_file": "nothing"}, "cannot read nothing"),
        ({"tls_cert_file": "bad"}, "cannot be used"),
        ({"tls_cert_file": "localhost.crt", "tls_key_file": "client.key"}, "cannot be used"),
        (
            {"tls_cert_file": "localhost.crt", "tls_key_file": "localhost.key", "tls_client_ca_file": "bad"},
            "bad",
        ),
    ],
)
def test_files_that_cannot_be_used_refuse_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    authority = Authority(tmp_path)
    authority.issue()
    authority.issue("client")
    (tmp_path / "bad").write_text("no certificate")
    with pytest.raises(StartRefused, match=words):
        Tls.of(Settings(**settings))


def test_the_files_of_a_client_are_named_by_the_environment(tmp_path: Path) -> None:
    found = ClientTls.from_environment({"PERDURE_TLS_CA_FILE": "ca", "PERDURE_TLS_CLIENT_CERT_FILE": ""})
    assert found == ClientTls(Path("ca"))
    with pytest.raises(InvalidInput, match="cannot be used"):
        found.context()
    with pytest.raises(InvalidInput, match="cannot be read"):
        found.pem()
