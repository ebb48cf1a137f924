import pytest

from ramify.core.errors import ConfigError
from ramify.core.rank import Rank, launched


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x, WORLD_SIZE=2: expected whole numbers"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1, WORLD_SIZE=2: expected whole numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: expected a number below WORLD_SIZE=2"),
    ],
)
def test_variables_that_torchrun_would_not_set(environ, message):
    with pytest.raises(ConfigError, match=message):
        launched(environ)


def test_without_torchrun_there_is_one_process():
    assert launched({}) == launched({"RANK": "0"}) == Rank()


def test_torchrun_tells_which_process_this_is():
    environ = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert launched(environ) == Rank(3, 8, 1)
    assert launched({**environ, "TORCHELASTIC_RUN_ID": "none"}).is_supervised


def test_ranks_are_on_one_machine_where_torchrun_says_so():
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    torchrun = {"TORCHELASTIC_RUN_ID": "none"}
    assert launched({**environ, **torchrun}).on_one_machine
    assert not launched(environ).on_one_machine
    assert not launched({**environ, **torchrun, "LOCAL_WORLD_SIZE": "1"}).on_one_machine
    assert not Rank().on_one_machine
