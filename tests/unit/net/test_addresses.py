import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
from ipaddress import ip_address, ip_network

import pytest

from ramify.net.addresses import GuardedTransport, Lookups, check_url, is_allowed
from ramify.net.connections import HttpTransport
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.wire import ConnectFailedError, Request, Response

PUBLIC = ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
NOT_PUBLIC = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.0.9", "169.254.169.254", "172.16.0.1", "172.31.255.255",
    "192.168.1.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "255.255.255.255",
    "168.63.129.16", "100.100.100.200",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "fc00::1", "fd00:ec2::254", "fe80::1",
    "fe80::1%eth0", "fec0::1", "ff02::1",
]  # fmt: skip
METADATA = [
    "169.254.169.254",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:42::42",
    "fd00:c1::a9fe:a9fe",
    "fd12::169.254.169.254",
    "64:ff9b:1::169.254.170.2",
    "2002:a9fe:a9fe::1",
    "fe80::1",
    "224.0.0.1",
]


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed(text):
    assert is_allowed(ip_address(text))


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_all_others_are_not(text):
    assert not is_allowed(ip_address(text))


def test_a_network_of_the_recipe_opens_itself_alone():
    also = [*map(ip_network, ["10.1.0.0/16", "fd12::/32"])]
    assert [is_allowed(ip_address(a), also) for a in ("10.1.9.9", "10.2.0.1", "fd12::1", "fd13::1")] == [
        True,
        False,
        True,
        False,
    ]
    assert is_allowed(ip_address("::ffff:10.1.0.1"), also)


@pytest.mark.parametrize("text", METADATA)
def test_no_recipe_opens_link_local_multicast_or_metadata(text):
    for also in (["0.0.0.0/0", "::/0"], ["fd00::/8"]):
        assert not is_allowed(ip_address(text), [*map(ip_network, also)])


@pytest.mark.parametrize(
    "text",
    ["ftp://a.test/", "file:///etc/passwd", "gopher://a.test/", "javascript:1", "//a.test/", "a.test/x", "http:///x", "",
     "http://u:p@a.test/", "http://u@a.test/", "http://a.test:22/", "http://a.test:25/", "http://a.test:0/",
     "http://a.test:70000/", "http://a\x00b/", "http://[::1/", "http://a.test/" + "x" * 2048],
)  # fmt: skip
def test_spellings_that_are_refused(text):
    with pytest.raises(RequestFailedError) as refused:
        check_url(text)
    assert refused.value.kind is FailureKind.FORBIDDEN


@pytest.mark.parametrize(
    "text", ["http://a.test/", "https://a.test:8443/x?y=1", "http://a.test:8080/", "http://[2606:4700::1]/"]
)
def test_spellings_that_are_read(text):
    assert check_url(text + "#part") == text


class Wire:
    """Notes what would have been sent, and fails for the addresses that are named dead."""

    def __init__(self, dead=()):
        self.sent, self.dead = [], dead

    async def send(self, request):
        self.sent.append((request.connect_to, request.url))
        if request.connect_to in self.dead:
            raise ConnectFailedError(FailureKind.CONNECTION, "no route")

        async def nothing():
            return
            yield b""

        async def close():
            pass

        return Response(200, {}, nothing(), close)

    async def close(self):
        pass


def ask(url, answers, dead=()):
    """Ask `url` where the n-th look-up of a name gives the n-th of `answers`, once for each."""
    wire, left = Wire(dead), list(answers)

    async def resolver(host, port):
        answer = left.pop(0)
        if answer is None:
            raise OSError("no such name")
        return answer

    async def main():
        transport = GuardedTransport(resolver=resolver, inner=wire)
        kinds = []
        for _ in answers:
            try:
                kinds.append((await transport.send(Request(method="GET", url=url, headers={}))).status)
            except RequestFailedError as error:
                kinds.append(error.kind)
        return kinds

    return asyncio.run(main()), wire.sent


def test_the_connection_goes_to_the_checked_address_for_the_named_host():
    statuses, sent = ask("https://a.test:8443/x", [["93.184.215.14"]])
    assert statuses == [200]
    assert sent == [("93.184.215.14", "https://a.test:8443/x")]


def test_a_name_that_moves_inside_is_refused_the_second_time():
    statuses, sent = ask("http://a.test/", [["93.184.215.14"], ["127.0.0.1"], ["::1"]])
    assert statuses == [200, FailureKind.FORBIDDEN, FailureKind.FORBIDDEN]
    assert len(sent) == 1


def test_one_forbidden_address_of_several_is_enough():
    statuses, sent = ask("http://a.test/", [["93.184.215.14", "10.0.0.1"]])
    assert statuses == [FailureKind.FORBIDDEN]
    assert sent == []


def test_a_dead_address_gives_way_to_the_next():
    statuses, sent = ask("http://a.test/", [["2606:4700::1", "1.1.1.1"]], dead=["2606:4700::1"])
    assert statuses == [200]
    assert [address for address, _ in sent] == ["2606:4700::1", "1.1.1.1"]


def test_names_without_an_address_fail_as_connections():
    statuses, _ = ask("http://a.test/", [None, [], ["1.1.1.1"]], dead=["1.1.1.1"])
    assert statuses == [FailureKind.CONNECTION] * 3


@pytest.mark.parametrize(
    "host",
    ["127.1", "2130706433", "0x7f000001", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0"],
)
def test_every_spelling_of_this_machine_is_refused_by_the_real_resolver(host):
    wire = Wire()

    async def main():
        with pytest.raises(RequestFailedError) as refused:
            await GuardedTransport(inner=wire).send(Request(method="GET", url=f"http://{host}/", headers={}))
        return refused.value.kind

    assert asyncio.run(main()) is FailureKind.FORBIDDEN
    assert wire.sent == []


@pytest.fixture
def certificate(tmp_path):
    """A certificate of a.test that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=a.test"
    )
    extra = ["-addext", "subjectAltName=DNS:a.test", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run([*command.split(), *extra], check=True, capture_output=True)
    return files


@pytest.mark.parametrize(("host", "status"), [("a.test", 200), ("b.test", "certificate verify failed")])
def test_a_certificate_is_checked_for_the_host_and_not_for_the_address(certificate, host, status):
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=certificate[0])

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def resolver(host, port):
        return ["127.0.0.1"]

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving)
        url = f"https://{host}:{server.sockets[0].getsockname()[1]}/"
        inner = HttpTransport(1, keep_alive=False, verify=trusting)
        transport = GuardedTransport([ip_network("127.0.0.1/32")], resolver=resolver, inner=inner)
        async with server:
            try:
                response = await transport.send(Request(method="GET", url=url, headers={}))
            except RequestFailedError as error:
                await transport.close()
                return (
                    "certificate verify failed" if "certificate verify failed" in str(error) else str(error)
                )
            await response.close()
            await transport.close()
            return response.status

    assert asyncio.run(main()) == status


STUCK = """
import asyncio, socket, threading
from ramify.net.addresses import Lookups

def stuck(*arguments, **named):
    threading.Event().wait()

socket.getaddrinfo = stuck

async def whole():
    lookups = Lookups(at_one_time=3)
    tasks = [asyncio.ensure_future(lookups(f"host{i}", 80)) for i in range(60)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    names = [thread.name for thread in threading.enumerate()]
    print(names.count("name lookup"), await asyncio.to_thread(lambda: "free"))

asyncio.run(whole())
"""


def test_addresses_are_found() -> None:
    async def many() -> list[object]:
        lookups = Lookups(at_one_time=2)
        return list(await asyncio.gather(*(lookups(f"127.0.0.{i}", 80) for i in range(1, 21))))

    assert asyncio.run(many()) == [(f"127.0.0.{i}",) for i in range(1, 21)]


def test_a_name_without_an_address_is_an_error() -> None:
    with pytest.raises((socket.gaierror, UnicodeError)):
        asyncio.run(Lookups()("x" * 70 + ".invalid", 80))


def test_a_name_service_that_hangs_holds_neither_the_loops_threads_nor_the_end_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STUCK)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["3", "free"]
