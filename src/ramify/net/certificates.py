"""The certificates that connections trust. They are read once per process, since reading them takes 30 ms."""

import functools
import os
import ssl

import httpx

from ramify.core.errors import MachineError

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def trusted(*, by_environment: bool) -> ssl.SSLContext:
    """The HTTP library's own certificates, or those that SSL_CERT_FILE or SSL_CERT_DIR names.

    Args:
        by_environment: Whether these variables count.

    Raises:
        MachineError: The file or folder that they name cannot be read.
    """
    named = tuple(os.environ.get(name, "") for name in _VARIABLES) if by_environment else ("", "")
    try:
        return _read(*named)
    except OSError as error:
        found = next(f"{name} = {value}" for name, value in zip(_VARIABLES, named, strict=True) if value)
        raise MachineError(
            f"{found} names no certificates that can be read ({error.strerror or error}); mend or unset it"
        ) from error


@functools.lru_cache(maxsize=4)
def _read(file: str, folder: str) -> ssl.SSLContext:
    """Create a context. The library reads the variables itself; the arguments are only the key of the lru_cache."""
    return httpx.create_ssl_context(trust_env=bool(file or folder))
