"""The addresses that may be fetched for a policy, and name lookups. Web pages can link to any address, internal ones too.

Allowed are http and https without credentials, on ports 80, 443 and from 1024 on. The other low ports belong to mail,
shells and the like, whose servers might read an HTTP request as commands. Names are never trusted: we resolve the host,
check its addresses, and connect to the address that was checked. So a DNS answer that changes in between gains nothing.
"""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

import httpx

from ramify.net.connections import HttpTransport
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.wire import ConnectFailedError, Request, Response, Transport

_AT_ONE_TIME: Final = 32


class Lookups:
    """Looks names up with the machine's name service. Event loops can share one object.

    A lookup cannot be stopped and may take minutes. A few of them would use up the event loop's default threads, and
    the process would wait for those threads at its end. It does not wait for the daemon threads used here.
    """

    def __init__(self, at_one_time: int = _AT_ONE_TIME) -> None:
        """Args:
        at_one_time: Most concurrent threads; a thread ends when no lookup is waiting.
        """
        self._most = at_one_time
        self._threads = 0
        self._waiting: deque[tuple[Future[Sequence[str]], str, int]] = deque()
        self._lock = threading.Lock()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of `host`. A lookup that is cancelled before it began is skipped.

        Raises:
            OSError, UnicodeError: The host has no address.
        """
        outcome: Future[Sequence[str]] = Future()
        with self._lock:
            self._waiting.append((outcome, host, port))
            needs_thread = self._threads < self._most
            self._threads += needs_thread
        if needs_thread:
            threading.Thread(target=self._work, name="name lookup", daemon=True).start()
        return await asyncio.wrap_future(outcome)

    def _work(self) -> None:
        while (task := self._next()) is not None:
            outcome, host, port = task
            if not outcome.set_running_or_notify_cancel():
                continue
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except Exception as error:  # noqa: BLE001 - passed on to the caller
                outcome.set_exception(error)
            else:
                outcome.set_result(tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    def _next(self) -> tuple[Future[Sequence[str]], str, int] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None


Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

_MAX_URL_CHARS: Final = 2048
_MAX_ADDRESSES_TRIED: Final = 3
_IN_FLIGHT: Final = 100
"""Most connections of the transport itself; its client allows fewer."""
_LOW_PORTS: Final = (80, 443)
_FIRST_HIGH_PORT: Final = 1024
_LAST_PORT: Final = 65535

# RFC 6890 and its registries, and Azure's platform address, which only looks public.
_NOT_PUBLIC_V4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
            "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
        ),
    )
)  # fmt: skip
_UNICAST_V6: Final = IPv6Network("2000::/3")
# Teredo and other protocol assignments, documentation, 6to4.
_NOT_PUBLIC_V6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_HOLDS_V4: Final = tuple(map(IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96")))
# Metadata services, which no recipe can open: they give out the keys of the machine's own cloud account. IPv4: link-local,
# Azure, Alibaba, Oracle. IPv6: link-local, AWS, Google, Scaleway, Oracle, each with the network around its address.
_METADATA: Final = tuple(
    map(
        ip_network,
        ("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32",
         "fe80::/10", "fd00:ec2::/64", "fd20:ce::/64", "fd00:42::/64", "fd00:c1::/64"),
    )
)  # fmt: skip
# Also multicast, reserved and unspecified addresses, and tunnels (Teredo, 6to4) that lead to any IPv4 address.
_NEVER: Final = (
    *_METADATA,
    *map(
        ip_network,
        ("224.0.0.0/4", "240.0.0.0/4", "0.0.0.0/8", "ff00::/8", "::/128", "2001::/32", "2002::/16"),
    ),
)


def is_allowed(address: Address, also: Sequence[Network] = ()) -> bool:
    """Return True if `address` may be fetched: it is public, or lies in one of the networks `also`.

    Link-local, multicast and metadata addresses are refused even if `also` contains them. An IPv6 address that embeds
    an IPv4 address (mapped, NAT64) is judged by the IPv4 address.
    """
    if isinstance(address, IPv6Address) and any(address in network for network in _HOLDS_V4):
        return is_allowed(IPv4Address(int(address) & 0xFFFFFFFF), also)
    if any(_within(address, network) for network in _NEVER):
        return False
    if any(_within(address, network) for network in also):
        return not _ends_as_metadata(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _UNICAST_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


def _ends_as_metadata(address: Address) -> bool:
    """Return True if an IPv6 address ends with a metadata service's IPv4 address, as address translators write it."""
    end = IPv4Address(int(address) & 0xFFFFFFFF)
    return address.version == 6 and any(_within(end, network) for network in _METADATA)


def join_url(base: str, location: str) -> str:
    """Return the address that a redirect from `base` to `location` leads to.

    Raises:
        RequestFailedError: REDIRECTS.
    """
    try:
        return str(httpx.URL(base).join(location))
    except (httpx.InvalidURL, ValueError):
        raise RequestFailedError(FailureKind.REDIRECTS, "it redirects to an invalid address") from None


def check_url(text: str) -> str:
    """Check the scheme, credentials and port of an address; returns it in its usual spelling, without its fragment.

    Raises:
        RequestFailedError: FORBIDDEN.
    """
    if len(text) > _MAX_URL_CHARS:
        raise _forbidden(f"the address is longer than {_MAX_URL_CHARS} characters")
    try:
        url = httpx.URL(text.strip()).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError):
        raise _forbidden("the address cannot be read") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise _forbidden("expected an http or https address")
    if url.userinfo or "@" in url.netloc.decode("ascii", "replace"):
        raise _forbidden("the address holds credentials")
    if url.port is not None and url.port not in _LOW_PORTS and not _FIRST_HIGH_PORT <= url.port <= _LAST_PORT:
        raise _forbidden(f"port {url.port} may not be asked")
    return str(url)


class GuardedTransport:
    """Implements `ramify.net.wire.Transport`: resolves a host, checks its addresses, and connects to one that was checked.

    No proxy is used, since it would resolve names itself. Connections are not kept alive: one that was opened for a host
    must not serve another host with the same address.
    """

    def __init__(
        self,
        also: Sequence[Network] = (),
        *,
        resolver: Resolver | None = None,
        inner: Transport | None = None,
    ) -> None:
        self._also = tuple(also)
        self._resolve = resolver or Lookups()
        self._inner = inner or HttpTransport(_IN_FLIGHT, by_environment=False, keep_alive=False)

    async def send(self, request: Request) -> Response:
        """Send one request.

        Raises:
            RequestFailedError: FORBIDDEN, if any address of the host is forbidden; else as `Transport.send`.
        """
        url = httpx.URL(check_url(request.url))
        host = url.raw_host.decode("ascii")
        addresses = await self._allowed_addresses(host, url.port or (443 if url.scheme == "https" else 80))
        failed = ConnectFailedError(FailureKind.CONNECTION, f"the name {host} has no address")
        for address in addresses[:_MAX_ADDRESSES_TRIED]:
            try:
                return await self._inner.send(replace(request, url=str(url), connect_to=address))
            except ConnectFailedError as error:
                failed = error
        raise failed

    async def close(self) -> None:
        """Close all connections."""
        await self._inner.close()

    async def _allowed_addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            resolved = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise ConnectFailedError(FailureKind.CONNECTION, f"the name {host} has no address") from None
        addresses = [ip_address(text) for text in resolved]
        if not all(is_allowed(address, self._also) for address in addresses):
            raise _forbidden(f"{host} has an address that is not public")
        return [str(address) for address in addresses]


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _forbidden(detail: str) -> RequestFailedError:
    return RequestFailedError(FailureKind.FORBIDDEN, detail)
