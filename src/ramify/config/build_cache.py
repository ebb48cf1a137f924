"""Builds the cache of a checked recipe."""

from ramify.config.schema_tools import CacheSection
from ramify.core.protocols import Cache

_DAY_SECONDS = 86_400.0


def build_cache(section: CacheSection) -> Cache:
    """The cache, or a cassette if the recipe's mode asks for one.

    Raises:
        DataError: The file is something else, damaged, or written by a newer ramify; a cassette to replay is missing.
        MachineError: The file cannot be written.
    """
    if section.mode == "cache":
        from ramify.cache.sqlite import SqliteCache, SqliteSettings

        return SqliteCache(
            section.path, SqliteSettings(section.days * _DAY_SECONDS, section.empty_days * _DAY_SECONDS)
        )
    from ramify.cache.cassette import Cassette, CassetteMode, FailureForm
    from ramify.net.failures import RequestFailedError

    failures = FailureForm(RequestFailedError, RequestFailedError.as_json, RequestFailedError.from_json)
    return Cassette(section.path, CassetteMode(section.mode), failures)
