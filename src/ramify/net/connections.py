"""The connections of httpx, with its automatic features off: no cookies, no redirects, only one layer of gzip."""

import os
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx

from ramify.core.errors import MachineError
from ramify.net.body import ACCEPT_ENCODING
from ramify.net.certificates import trusted

_PROXY_VARIABLES: Final = ("all_proxy", "http_proxy", "https_proxy")


def open_connections(
    timeout_seconds: float, in_flight: int, transport: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    """A client of httpx; it opens connections when they are needed.

    Args:
        timeout_seconds: Limit for each step of a request.
        in_flight: Most concurrent connections.
        transport: Opens the connections; the environment's proxies and certificates are then ignored. None: they count.

    Raises:
        MachineError: The environment names a proxy or certificates that cannot be used.
    """
    try:
        return httpx.AsyncClient(
            transport=transport,
            verify=trusted(by_environment=transport is None),
            trust_env=transport is None,
            timeout=timeout_seconds,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            limits=httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight),
            headers={"accept-encoding": ACCEPT_ENCODING, "user-agent": "ramify"},
        )
    except (ImportError, ValueError, httpx.InvalidURL):
        proxies = sorted(
            name for name, value in os.environ.items() if value and name.lower() in _PROXY_VARIABLES
        )
        if not proxies:
            raise
    # The library's own text is left out: it may contain the proxy's password.
    raise MachineError(
        f"the environment variable {' or '.join(proxies)} names a proxy that cannot be used; "
        "expected http://HOST:PORT, or unset it"
    )
