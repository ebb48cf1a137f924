"""Chat models: the policy itself, a function of the user's own, an endpoint."""

import asyncio
import threading
from dataclasses import replace

import pytest

from hermes_folders import write_hermes_tokenizer
from loopback import Reply, as_json, serve
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError, ServiceDownError
from ramify.core.messages import Message, Problem
from ramify.engines.chat_models import OpenAIChat, OwnChat, PolicyChat
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.engines.virtual_clock import run_virtual
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.runtime.call_clock import CallClock, set_clock

ASKED = (Message.of("system", "be brief"), Message.of("user", "what is 12 plus 30 ?"))


def policy(folder, play, context_tokens=1 << 20, seed=0):
    tokenizer = ChatTokenizer(folder)
    engine = ScriptedEngine(tokenizer, play, context_tokens)
    return PolicyChat(engine, TagRenderer(tokenizer), seed)


def ask(model, messages=ASKED, max_tokens=50):
    return asyncio.run(model.complete(messages, max_tokens=max_tokens, temperature=0.0))


def test_the_policy_answers_messages_without_its_reasoning(tokenizer_folder):
    contexts = []

    def play(context, seed):
        contexts.append((context, seed))
        return ScriptedTurn("<think> so </think> 42", ends=True)

    model = policy(tokenizer_folder, play)
    assert ask(model) == "42"
    assert "be brief" in contexts[0][0]
    assert "12 plus 30" in contexts[0][0]
    assert model.usage.answers == 1
    assert model.usage.prompt_tokens > 10
    assert model.name == "policy 0"


def test_equal_requests_have_equal_draws_and_others_have_others(tokenizer_folder):
    seeds = []

    def play(context, seed):
        seeds.append(seed)
        return ScriptedTurn("42", ends=True)

    model = policy(tokenizer_folder, play)
    ask(model)
    ask(model)
    ask(model, (Message.of("user", "and 13 ?"),))
    ask(policy(tokenizer_folder, play, seed=1))
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3


def test_a_request_that_does_not_fit_the_context_fails_alone(tokenizer_folder):
    with pytest.raises(RequestFailedError, match="no room"):
        ask(policy(tokenizer_folder, lambda c, s: ScriptedTurn("42"), context_tokens=5))


def long(context, seed):
    return ScriptedTurn("find the number and " * 30)


def test_an_answer_that_its_most_tokens_cut_is_a_failed_request(tokenizer_folder):
    model = policy(tokenizer_folder, long)
    with pytest.raises(RequestFailedError) as cut:
        ask(model, max_tokens=3)
    assert cut.value.kind is FailureKind.CUT
    assert model.usage.completion_tokens == 3


class Keeps:
    """Keeps the requests."""

    def __init__(self, inner):
        self.inner, self.info, self.requests = inner, inner.info, []

    async def generate(self, request):
        self.requests.append(request)
        return await self.inner.generate(request)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_request_has_the_helpers_temperature_and_fits_the_context(tokenizer_folder, temperature):
    tokenizer = ChatTokenizer(tokenizer_folder)
    renderer = TagRenderer(tokenizer)
    prompt = len(renderer.render_prompt(Problem("", ASKED, ()), ()))
    for room, expected in ((5, 5), (500, 50)):
        engine = Keeps(ScriptedEngine(tokenizer, lambda c, s: ScriptedTurn("42", ends=True), prompt + room))
        model = PolicyChat(engine, renderer, 0)
        asyncio.run(model.complete(ASKED, max_tokens=50, temperature=temperature))
        (request,) = engine.requests
        assert (request.max_new_tokens, request.temperature) == (expected, temperature)


@pytest.mark.parametrize("refusal", ["{{- raise_exception('no system') -}}", ""])
def test_without_a_system_message_in_the_template_the_instructions_come_before_the_data(tmp_path, refusal):
    folder = write_hermes_tokenizer(tmp_path)
    loop = f"{{%- if m.role == 'system' -%}}{refusal}{{%- else -%}}{{{{- m.role + ':' + m.content -}}}}{{%- endif -%}}"
    (folder / "chat_template.jinja").write_text(f"{{%- for m in messages -%}}{loop}{{%- endfor -%}}")
    contexts = []

    def play(context, seed):
        contexts.append(context)
        return ScriptedTurn("42", ends=True)

    assert ask(policy(folder, play)) == "42"
    assert contexts == ["user:be brief\n\nwhat is 12 plus 30 ?"]


def test_for_a_tools_deadline_the_policys_time_is_time_in_a_queue(tokenizer_folder):
    def play(context, seed):
        return ScriptedTurn("42", ends=True, seconds_per_token=1000.0)

    async def main():
        clock = CallClock(asyncio.get_running_loop().time)
        set_clock(clock)
        await policy(tokenizer_folder, play).complete(ASKED, max_tokens=50, temperature=0.0)
        return clock.own, clock.queued

    (own_seconds, queued_seconds), _ = run_virtual(main())
    assert own_seconds < 1.0
    assert queued_seconds >= 1000.0


def test_answers_of_a_function_are_recorded_under_its_file_and_its_arguments():
    def mine(messages, word=""):
        return word

    names = [
        OwnChat(mine, called, args, file).name
        for called, args, file in (
            ("mine", {"word": "a"}, "helper.py 01"),
            ("mine", {"word": "b"}, "helper.py 01"),
            ("mine", {"word": "a"}, "helper.py 02"),
            ("mine", {"word": "a"}, "other.py 01"),
            ("yours", {"word": "a"}, "helper.py 01"),
        )
    ]
    assert len(set(names)) == len(names)
    assert OwnChat(mine, "mine", {"word": "a"}, "helper.py 01").name == names[0]


def own(function, **args):
    return OwnChat(function, "mine", args, "helper.py 0123")


def test_a_function_gets_roles_and_contents():
    def mine(messages, word):
        return f"{word} {messages[-1]['role']} {messages[0]['content']}"

    assert ask(own(mine, word="so")) == "so user be brief"


def test_a_coroutine_too():
    async def mine(messages):
        await asyncio.sleep(0)
        return messages[-1]["content"]

    assert ask(own(mine)) == "what is 12 plus 30 ?"


@pytest.mark.timeout(20)
def test_one_that_blocks_holds_up_nobody_else():
    freed = threading.Event()

    async def mine(messages):
        freed.wait()
        return "late"

    async def main():
        pending = asyncio.create_task(own(mine).complete(ASKED, max_tokens=5, temperature=0.0))
        await asyncio.sleep(0.01)
        freed.set()
        return await pending

    assert asyncio.run(main()) == "late"


def breaks(messages):
    raise KeyError("nothing")


def leaves(messages):
    raise SystemExit("bye")


def interrupts(messages):
    raise KeyboardInterrupt


async def leaves_async(messages):
    raise SystemExit("bye")


async def cancels(messages):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "function",
    [breaks, lambda messages: None, lambda messages: 7, leaves, interrupts, leaves_async, cancels],
)
def test_one_that_fails_or_says_no_text_is_a_failed_request(function):
    with pytest.raises(RequestFailedError):
        ask(own(function))


class Class:
    def __init__(self, messages):
        pass


@pytest.mark.parametrize("function", [Class, lambda: "", lambda messages, other: ""])
def test_what_cannot_be_called_with_messages_is_refused(function):
    with pytest.raises(ConfigError, match="mine"):
        own(function)


def test_the_end_token_is_no_part_of_the_answer(tokenizer_folder):
    end = ChatTokenizer(tokenizer_folder)
    text = ask(policy(tokenizer_folder, lambda c, s: replace(ScriptedTurn("42"), ends=True)))
    assert end.decode([end.eos_id]) not in text


# an endpoint

MESSAGES = (Message.of("system", "Be brief."), Message.of("user", "Capital of France?"))


def reply(content, finish="stop", **message):
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish,
    }
    return as_json({"choices": [choice], "usage": {"prompt_tokens": 12, "completion_tokens": 3}})


def ask_endpoint(answer, key=None, times=1, whole=False, **settings):
    """Return the last answer of the model or its error, the model's usage, and the requests that reached the server."""

    async def main(url):
        limits = HttpSettings(backoff_seconds=0.01, **settings)
        model = OpenAIChat(
            HttpClient("the model", limits, secrets=[key] if key else ()),
            base_url=f"{url}/v1/",
            model="small",
            key=key,
            extra={"top_p": 0.95, "model": "x"},
            whole=whole,
        )
        assert model.name == "small"
        for _ in range(times):
            try:
                outcome = await model.complete(MESSAGES, max_tokens=99, temperature=0.6)
            except (RequestFailedError, ServiceDownError) as error:
                outcome = error
        await model.close()
        await model.close()
        return outcome, model.usage

    with serve(answer) as server:
        return *asyncio.run(main(server.url)), server.requests


@pytest.mark.integration
@pytest.mark.parametrize("content", ["half of", None])
def test_a_cut_answer_is_a_failure_where_it_must_be_whole(content):
    cut, usage, _ = ask_endpoint(lambda _: reply(content, finish="length"), whole=True)
    assert cut.kind is FailureKind.CUT
    assert usage.completion_tokens == 3
    whole, _, _ = ask_endpoint(lambda _: reply("all of it"), whole=True)
    assert whole == "all of it"


@pytest.mark.integration
def test_a_request_is_what_the_interface_documents():
    text, usage, (request,) = ask_endpoint(lambda _: reply("Paris."), key="sk-test-key")
    assert text == "Paris."
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer sk-test-key"
    assert request.json() == {
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


@pytest.mark.integration
def test_a_server_without_a_key_is_sent_none():
    _, _, (request,) = ask_endpoint(lambda _: reply("Paris."))
    assert "authorization" not in request.headers


@pytest.mark.integration
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
    assert ask_endpoint(lambda _: reply(content))[0] == text


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: as_json({}), "choices"),
        (lambda: as_json({"choices": []}), "choices"),
        (lambda: as_json({"choices": [{}]}), "choices"),
        (lambda: as_json({"choices": "x"}), "choices"),
        (lambda: as_json({"choices": [{"message": None}]}), "choices"),
        (lambda: as_json({"error": {"message": "overloaded"}}), "choices"),
        (lambda: as_json([1]), "choices"),
        (lambda: reply(None), "no text"),
        (lambda: reply("  "), "no text"),
        (lambda: reply(7), "no text"),
        (lambda: reply(None, reasoning_content="hm"), "reasoning and no text"),
        (lambda: reply("<think>hm", finish="length"), "within max_tokens"),
        (lambda: reply(None, finish="length", reasoning_content="hm"), "within max_tokens"),
        (lambda: reply(None, refusal="I can't"), "refused"),
        (lambda: reply("x", finish="content_filter"), "refused"),
        (lambda: Reply(200, b"<html>", {"content-type": "text/html"}), "expected JSON"),
    ],
)
def test_answers_without_a_text_are_typed(answer, reason):
    failed, usage, _ = ask_endpoint(lambda _: answer())
    assert failed.kind is FailureKind.MALFORMED
    assert reason in failed.detail
    assert usage.answers <= 1


@pytest.mark.integration
def test_usage_that_is_no_number_counts_nothing():
    body = {
        "choices": [{"message": {"content": "a"}}],
        "usage": {"prompt_tokens": "x", "completion_tokens": None},
    }
    _, usage, _ = ask_endpoint(lambda _: as_json(body))
    assert (usage.answers, usage.prompt_tokens, usage.completion_tokens) == (1, 0, 0)


@pytest.mark.integration
def test_a_service_that_never_gives_a_choice_counts_as_down_and_one_whose_model_is_silent_does_not():
    failed, _, requests = ask_endpoint(lambda _: as_json({}), times=4, failures_to_open=3)
    assert isinstance(failed, ServiceDownError)
    assert len(requests) == 3
    failed, _, requests = ask_endpoint(lambda _: reply(None), times=4, failures_to_open=3)
    assert failed.kind is FailureKind.MALFORMED
    assert len(requests) == 4
