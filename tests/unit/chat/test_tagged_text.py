from hypothesis import given
from hypothesis import strategies as st

from ramify.chat.tags import read_response, without_results

SEARCH, PYTHON = "<search> q </search><result> r </result>", "<python>\n1\n</python> <result>\n1\n</result>"


def test_calls_are_what_a_result_answered() -> None:
    assert read_response(SEARCH + PYTHON + SEARCH).calls == ("search", "python", "search")
    refused = "<search>b</search><result>The maximum search limit is exceeded. You are not allowed to search.</result>"
    assert read_response(SEARCH + refused).calls == ("search",)
    assert read_response("<search>a</search>").calls == ()


@given(st.text(alphabet="<>/resultanw \\boxed{}"), st.text())
def test_nothing_that_a_tool_said_is_an_answer(before: str, result: str) -> None:
    result = result.replace("</result>", "")
    cut = without_results(f"<result>{result}</result>{before}")
    assert cut == without_results(before)
