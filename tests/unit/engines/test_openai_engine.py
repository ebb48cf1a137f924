"""The text engine against a real server on loopback: the wire format, stop strings that services cut off, failures."""

import asyncio
from dataclasses import replace

import pytest

from loopback import as_json, serve
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError, ServiceDownError
from ramify.core.records import Finish, Request
from ramify.engines.openai_engine import OpenAIEngine
from ramify.net.client import HttpClient, HttpSettings

STOPS = ("</search>", "</python>", "</answer>", "<result>")


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return ChatTokenizer(model_folder)


def ask(tokenizer, reply, key=None, **changes):
    """What the engine makes of one reply, and what it asked."""
    request = Request(tokenizer.encode("<|im_start|>user\nwhat ?"), 2**62 + 5, 40, STOPS, temperature=0.5)

    async def run(url):
        settings = HttpSettings(attempts=2, backoff_seconds=0.001, max_backoff_seconds=0.002)
        engine = OpenAIEngine(
            HttpClient("engine", settings, secrets=[key] if key else []),
            tokenizer,
            base_url=f"{url}/v1/",
            model="m",
            context_tokens=400,
            slots=4,
            key=key,
        )
        try:
            return await engine.generate(replace(request, **changes))
        finally:
            await engine.close()

    with serve(lambda asked: reply) as server:
        return asyncio.run(run(server.url)), server.asked


def choice(text, reason="stop", **more):
    return as_json({"choices": [{"text": text, "finish_reason": reason} | more]})


def test_the_wire_format(tokenizer):
    _, (asked,) = ask(tokenizer, choice("hm", stop_reason=None), key="k-123")
    assert asked.path == "/v1/completions"
    assert asked.headers["authorization"] == "Bearer k-123"
    assert asked.json() == {
        "model": "m",
        "prompt": "<|im_start|>user\nwhat ?",
        "max_tokens": 40,
        "temperature": 0.5,
        "stop": list(STOPS),
        "seed": (2**62 + 5) % 2**31,
    }
    _, (asked,) = ask(tokenizer, choice("hm", stop_reason=None), top_p=0.95)
    assert asked.json()["top_p"] == 0.95


@pytest.mark.parametrize(
    ("text", "more", "expected", "finish"),
    [
        ("<search> who", {"stop_reason": "</search>"}, "<search> who</search>", Finish.STOP),
        ("<search> who </search>", {"stop_reason": "</search>"}, "<search> who </search>", Finish.STOP),
        ("<search> who </search> <result> forged", {}, "<search> who </search>", Finish.STOP),
        ("<search> who", {}, "<search> who</search>", Finish.STOP),
        ("use <search> or so <answer> 42", {}, "use <search> or so <answer> 42</answer>", Finish.STOP),
        ("<search> who", {"stop_reason": None}, "<search> who<|im_end|>", Finish.EOS),
        ("I see", {}, "I see<|im_end|>", Finish.EOS),
        ("I see", {"stop_reason": 151645}, "I see<|im_end|>", Finish.EOS),
        ("I see ", {"stop_reason": "<result>"}, "I see <result>", Finish.STOP),
        ("", {}, "<|im_end|>", Finish.EOS),
        ("I see", {"finish_reason": "content_filter"}, "I see<|im_end|>", Finish.EOS),
        (None, {"finish_reason": "content_filter"}, "<|im_end|>", Finish.EOS),
    ],
)
def test_how_a_turn_ended(tokenizer, text, more, expected, finish):
    done, _ = ask(tokenizer, choice(text, **more))
    assert (tokenizer.decode(done.token_ids), done.finish) == (expected, finish)
    assert len(done.logprobs) == len(done.token_ids) == sum(size for _, size in done.version_runs)


def test_a_cut_turn_and_one_that_our_tokens_make_longer(tokenizer):
    done, _ = ask(tokenizer, choice("so far", "length"))
    assert done.finish is Finish.LENGTH
    assert len(done.token_ids) < 40
    done, _ = ask(tokenizer, choice("what " * 30), max_new_tokens=8)
    assert (done.finish, len(done.token_ids)) == (Finish.LENGTH, 8)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (as_json({"choices": []}), "expected choices with a text"),
        (as_json({"choices": [{"message": {"content": "chat"}}]}), "expected choices with a text"),
        (choice("x", "tool_calls"), "finish_reason 'tool_calls'"),
        (as_json({"error": "no such model"}, 404), "no such model"),
        (as_json({}, 500), "HTTP 500"),
    ],
)
def test_what_is_no_completion_ends_the_run_in_words(tokenizer, reply, told):
    with pytest.raises(EngineError, match=told):
        ask(tokenizer, reply)


def test_a_refused_key_is_told_and_not_shown(tokenizer):
    with pytest.raises(ServiceDownError) as told:
        ask(tokenizer, as_json({"error": "bad key k-456"}, 401), key="k-456")
    assert "k-456" not in str(told.value)


def test_it_says_what_it_cannot_do(tokenizer):
    with pytest.raises(EngineError, match="no entropies"):
        ask(tokenizer, choice("x"), entropy_first_k=3)
    engine = OpenAIEngine(
        HttpClient("engine", HttpSettings()),
        tokenizer,
        base_url="http://x",
        model="m",
        context_tokens=9,
        slots=1,
    )
    assert not engine.info().exact_ids
    assert not engine.info().exact_entropy
    with pytest.raises(EngineError, match="takes no weights"):
        asyncio.run(engine.load_weights("shared", 1))
    asyncio.run(engine.close())
