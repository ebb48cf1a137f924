import pytest


@pytest.fixture
def path(tmp_path):
    """Of a cache that is not there yet."""
    return tmp_path / "folder" / "cache.sqlite"
