"""Chat models at hand: the policy itself, a function of the user's own."""

import asyncio
from dataclasses import replace

import pytest

from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError
from ramify.core.messages import Message
from ramify.engines.chat_models import OwnChat, PolicyChat
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.net.failures import RequestFailedError

ASKED = (Message.of("system", "be brief"), Message.of("user", "what is 12 plus 30 ?"))


def policy(folder, play, context_tokens=1 << 20, seed=0):
    tokenizer = ChatTokenizer(folder)
    engine = ScriptedEngine(tokenizer, play, context_tokens)
    return PolicyChat(engine, TagRenderer(tokenizer, ()), seed)


def ask(model, messages=ASKED, max_tokens=50):
    return asyncio.run(model.complete(messages, max_tokens=max_tokens, temperature=0.0))


def test_the_policy_answers_messages_without_its_reasoning(tokenizer_folder):
    seen = []

    def play(context, seed):
        seen.append((context, seed))
        return ScriptedTurn("<think> so </think> 42", ends=True)

    model = policy(tokenizer_folder, play)
    assert ask(model) == "42"
    assert "be brief" in seen[0][0]
    assert "12 plus 30" in seen[0][0]
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
    short = policy(tokenizer_folder, lambda c, s: ScriptedTurn("a" * 60), context_tokens=1 << 20)
    assert len(ask(short, max_tokens=3)) <= 30


def own(function, **args):
    return OwnChat(function, "mine", args)


def test_a_function_gets_roles_and_contents():
    def mine(messages, word):
        return f"{word} {messages[-1]['role']} {messages[0]['content']}"

    assert ask(own(mine, word="so")) == "so user be brief"


def test_a_coroutine_too():
    async def mine(messages):
        await asyncio.sleep(0)
        return messages[-1]["content"]

    assert ask(own(mine)) == "what is 12 plus 30 ?"


def breaks(messages):
    raise KeyError("nothing")


@pytest.mark.parametrize("function", [breaks, lambda messages: None, lambda messages: 7])
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
