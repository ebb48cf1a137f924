"""Certificates that connections trust, and connections to a Unix socket."""

import asyncio
import ssl

import pytest

from ramify.core.errors import MachineError
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.connections import HttpTransport, trusted


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)


def test_they_are_read_once_and_names_are_checked() -> None:
    context = trusted(by_environment=True)
    assert trusted(by_environment=False) is context
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.cert_store_stats()["x509_ca"] > 10


def test_the_environment_names_others(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    authority = trusted(by_environment=False).get_ca_certs(binary_form=True)[0]
    file = tmp_path / "own.pem"
    file.write_text(ssl.DER_cert_to_PEM_cert(authority))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert trusted(by_environment=True).get_ca_certs(binary_form=True) == [authority]
    assert len(trusted(by_environment=False).get_ca_certs()) > 10
    monkeypatch.delenv("SSL_CERT_FILE")
    assert len(trusted(by_environment=True).get_ca_certs()) > 10


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_holds_none_is_named_by_its_variable(
    content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    file = tmp_path / "own.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(MachineError, match=r"SSL_CERT_FILE = .*own\.pem names no certificates") as caught:
        trusted(by_environment=True)
    assert "\n" not in str(caught.value)


def test_a_unix_socket_is_asked_whatever_the_host(tmp_path) -> None:
    heads = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue")
        await writer.drain()
        writer.close()

    async def main() -> object:
        async with await asyncio.start_unix_server(answer, tmp_path / "s"):
            client = HttpClient(
                "probe", HttpSettings(attempts=1), transport=HttpTransport(1, uds=tmp_path / "s")
            )
            try:
                return (await client.get("http://engine/health")).json()
            finally:
                await client.close()

    assert asyncio.run(main()) is True
    assert heads[0].startswith(b"GET /health HTTP/1.1\r\n")
    assert b"host: engine\r\n" in heads[0].lower()
