"""What a run has opened is closed where a later part of it cannot be built."""

import pytest

from ramify.core.errors import EngineError
from ramify.sampler.sampler import closed_on_error


class Resource:
    def __init__(self):
        self.closed = 0

    async def close(self):
        self.closed += 1


def test_it_is_closed_by_an_error_alone():
    resource = Resource()
    with closed_on_error(resource):
        pass
    assert resource.closed == 0
    with pytest.raises(EngineError, match="no probe"), closed_on_error(resource):
        raise EngineError("no probe")
    assert resource.closed == 1
