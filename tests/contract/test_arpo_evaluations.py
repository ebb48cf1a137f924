"""The recipes of ARPO's evaluation have the released numbers.

They are copied from the reference page of its evaluation, design/reference/evaluation.md, sections 1.2, 1.4 and 2. It cites the files of
RUC-NLPIR/ARPO. The replies are those of src/sample_processor.py there.
"""

from functools import reduce
from pathlib import Path

import pytest

from ramify.config.load import read_toml

RECIPES = Path(__file__).parents[2] / "recipes"
SAMPLING = {
    "sampling.temperature": 0.6,
    "sampling.top_p": 0.95,
    "sampling.top_k": 20,
    "sampling.repetition_penalty": 1.1,
    "sampling.max_turn_tokens": 4 * 4096,
    "sampling.trajectory_seconds": 1500,
    "sampling.attempts": 5,
    "data.limit": 500,
    "tools.python.max_calls": 5,
    "tools.python.timeout_seconds": 120,
    "tools.python.limit_reply": "The maximum python call limit is exceeded. You are not allowed to use python.",
    "tools.search.max_calls": 10,
    "tools.search.top_k": 10,
    "tools.search.limit_reply": "The maximum search limit is exceeded. You are not allowed to search.",
    "tools.search.repeat_reply": "You have searched this query. Please refer to previous results.",
}
DEEP_SEARCH = {
    "engine.slots": 50,
    "engine.url": ["http://127.0.0.1:8002/v1", "http://127.0.0.1:8003/v1"],
    "tools.search.country": "cn",
    "tools.search.language": "en",
    "tools.search.http.requests_per_second": 32,
    "tools.browser.page_seconds": 20,
    "tools.browser.context_chars": 3000,
    "tools.browser.summary.url": ["http://127.0.0.1:8004/v1", "http://127.0.0.1:8005/v1"],
    "tools.browser.summary.temperature": 0.6,
    "tools.browser.summary.top_p": 0.95,
    "tools.browser.summary.max_tokens": 4096,
}
RELEASED = {
    "eval_reasoning": SAMPLING | {"tools.search.snippet_chars": 1000},
    "eval_deepsearch": SAMPLING | DEEP_SEARCH | {"reward.judge.model": "Qwen/Qwen2.5-72B-Instruct"},
    "eval_all": SAMPLING | DEEP_SEARCH | {"sampling.attempts": 1},
}
CONTEXT = 32768


@pytest.mark.parametrize("name", RELEASED)
def test_a_recipe_has_the_released_numbers(name):
    recipe = read_toml(RECIPES / f"{name}.toml")
    values = {key: reduce(lambda table, part: table[part], key.split("."), recipe) for key in RELEASED[name]}
    assert values == RELEASED[name]
    assert recipe["data"]["max_prompt_tokens"] + recipe["sampling"]["max_tokens"] == CONTEXT
    # The tools' limits end nothing, so the policy must reach them before the limit of all calls does.
    assert recipe["sampling"]["max_calls"] >= 1000


@pytest.mark.parametrize(
    "name",
    [
        *("arpo_deepsearch_8b", "arpo_deepsearch_14b", "arpo_deepsearch_32b"),
        *("aepo_deepsearch_14b", "aepo_deepsearch_32b"),
    ],
)
def test_searches_of_training_have_the_released_country(name):
    search = read_toml(RECIPES / f"{name}.toml")["tools"]["search"]
    assert (search["country"], search["language"]) == ("cn", "en")
