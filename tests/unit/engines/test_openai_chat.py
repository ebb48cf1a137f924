import asyncio

import pytest

from loopback import Reply, as_json, serve
from ramify.core.errors import ServiceDownError
from ramify.core.messages import Message
from ramify.engines.chat_models import OpenAIChat
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError

pytestmark = pytest.mark.integration

MESSAGES = (Message.of("system", "Be brief."), Message.of("user", "Capital of France?"))


def said(content, finish="stop", **message):
    body = {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": finish,
            }
        ]
    }
    return as_json({**body, "usage": {"prompt_tokens": 12, "completion_tokens": 3}})


def ask(answer, key=None, times=1, whole=False, **settings):
    """What the model says, its usage, and what the server was asked."""
    with serve(answer) as server:

        async def main():
            client = HttpClient(
                "the model", HttpSettings(backoff_seconds=0.01, **settings), secrets=[key] if key else ()
            )
            model = OpenAIChat(
                client,
                base_url=server.url + "/v1/",
                model="small",
                key=key,
                extra={"top_p": 0.95, "model": "x"},
                whole=whole,
            )
            assert model.name == "small"
            said = []
            for _ in range(times):
                try:
                    said.append(await model.complete(MESSAGES, max_tokens=99, temperature=0.6))
                except (RequestFailedError, ServiceDownError) as error:
                    said.append(error)
            await model.close()
            await model.close()
            return said, model.usage

        said, usage = asyncio.run(main())
        return said[-1], usage, server.asked


@pytest.mark.parametrize("content", ["half of", None])
def test_a_cut_answer_is_a_failure_where_it_must_be_whole(content):
    cut, usage, _ = ask(lambda request: said(content, finish="length"), whole=True)
    assert cut.kind is FailureKind.CUT
    assert usage.completion_tokens == 3
    whole, _, _ = ask(lambda request: said("all of it"), whole=True)
    assert whole == "all of it"


def test_a_request_is_what_the_interface_documents():
    text, usage, (asked,) = ask(lambda _: said("Paris."), key="sk-test-key")
    assert text == "Paris."
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["authorization"] == "Bearer sk-test-key"
    assert asked.json() == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Capital of France?"},
        ],
        "max_tokens": 99,
        "temperature": 0.6,
        "top_p": 0.95,
    }
    assert (usage.answers, usage.prompt_tokens, usage.completion_tokens) == (1, 12, 3)


def test_a_server_without_a_key_is_sent_none():
    _, _, (asked,) = ask(lambda _: said("Paris."))
    assert "authorization" not in asked.headers


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (" Paris. ", "Paris."),
        (
            [{"type": "text", "text": "Par"}, {"type": "other"}, "x", {"type": "text", "text": "is."}],
            "Paris.",
        ),
        ("<think>It is </think>\n\nParis.", "Paris."),
        ("France, so</think>Paris.", "Paris."),
        ("Paris, see <think>.", "Paris, see <think>."),
        ("Paris <think>a</think> b", "Paris <think>a</think> b"),
        ("half \ud800", "half ?"),
    ],
)
def test_the_text_is_found(content, text):
    assert ask(lambda _: said(content))[0] == text


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda: as_json({}), "choices"),
        (lambda: as_json({"choices": []}), "choices"),
        (lambda: as_json({"choices": [{}]}), "choices"),
        (lambda: as_json({"choices": "x"}), "choices"),
        (lambda: as_json({"choices": [{"message": None}]}), "choices"),
        (lambda: as_json({"error": {"message": "overloaded"}}), "choices"),
        (lambda: as_json([1]), "choices"),
        (lambda: said(None), "no text"),
        (lambda: said("  "), "no text"),
        (lambda: said(7), "no text"),
        (lambda: said(None, reasoning_content="hm"), "reasoning and no text"),
        (lambda: said("<think>hm", finish="length"), "within max_tokens"),
        (lambda: said(None, finish="length", reasoning_content="hm"), "within max_tokens"),
        (lambda: said(None, refusal="I can't"), "refused"),
        (lambda: said("x", finish="content_filter"), "refused"),
        (lambda: Reply(200, b"<html>", {"content-type": "text/html"}), "expected JSON"),
    ],
)
def test_answers_without_a_text_are_typed(reply, reason):
    failed, usage, _ = ask(lambda _: reply())
    assert failed.kind is FailureKind.MALFORMED
    assert reason in failed.detail
    assert usage.answers <= 1


def test_usage_that_is_no_number_counts_nothing():
    body = {
        "choices": [{"message": {"content": "a"}}],
        "usage": {"prompt_tokens": "x", "completion_tokens": None},
    }
    _, usage, _ = ask(lambda _: as_json(body))
    assert (usage.answers, usage.prompt_tokens, usage.completion_tokens) == (1, 0, 0)


def test_a_refused_key_ends_the_run_without_being_shown():
    failed, _, _ = ask(lambda _: as_json({"error": "bad key sk-test-key"}, 401), key="sk-test-key")
    assert isinstance(failed, ServiceDownError)
    assert "sk-test-key" not in str(failed)


def test_a_busy_server_is_asked_again():
    replies = iter([as_json({}, 429), as_json({}, 503), said("Paris.")])
    text, _, asked = ask(lambda _: next(replies))
    assert (text, len(asked)) == ("Paris.", 3)


def test_a_service_that_never_gives_a_choice_counts_as_down_and_one_whose_model_is_silent_does_not():
    failed, _, asked = ask(lambda _: as_json({}), times=4, failures_to_open=3)
    assert isinstance(failed, ServiceDownError)
    assert len(asked) == 3
    failed, _, asked = ask(lambda _: said(None), times=4, failures_to_open=3)
    assert failed.kind is FailureKind.MALFORMED
    assert len(asked) == 4
