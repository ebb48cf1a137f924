import pytest


@pytest.fixture
def path(tmp_path):
    """The path of a cache that is not there yet."""
    return tmp_path / "folder" / "cache.sqlite"
