import asyncio
import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.closing import LiveCount
from ramify.core.draws import stream
from ramify.core.errors import EngineError
from ramify.core.records import Finish, Request, TokenFilters
from ramify.engines.local import LocalEngine
from ramify.engines.sampling import sample
from ramify.modeling.load import load_model


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(model_folder)


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return ChatTokenizer(model_folder)


def engine_of(model, tokenizer, slots=8, live=None, sampler=sample):
    return LocalEngine(model, tokenizer, num_slots=slots, context_tokens=300, live=live, sampler=sampler)


def waits_at(step):
    """A sampler that waits in the engine's thread at this step, and the event that lets it go on."""
    going, calls = threading.Event(), itertools.count(1)

    def sampler(*arguments):
        if next(calls) == step:
            going.wait(60.0)
        return sample(*arguments)

    return sampler, going


async def steps(engine, count):
    """Wait until the engine's thread has taken so many."""
    while engine.counters.steps < count:
        await asyncio.sleep(0.001)


def learner_logprobs(model, context, written, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *written]])).logits[0, len(context) - 1 : -1]
    table = torch.log_softmax(logits.float() / temperature, -1)
    return table, table.gather(1, torch.tensor(written)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropies_are_the_models_own(model, tokenizer, temperature):
    engine = engine_of(model, tokenizer)

    async def trajectory(index):
        ids = tokenizer.encode("the capital of France is " + "a" * (index % 5))
        pairs = []
        for turn in range(3):
            request = Request(
                ids, stream(index, turn), 6, entropy_first_k=2, temperature=temperature, priority=(index,)
            )
            done = await engine.generate(request)
            pairs.append((ids, done))
            ids = ids + done.token_ids + tokenizer.encode(f" result {index % 3} {turn}")
        return pairs

    async def main():
        return await asyncio.gather(*(trajectory(index) for index in range(20)))

    for pairs in asyncio.run(main()):
        for context, done in pairs:
            table, expected = learner_logprobs(model, context, done.token_ids, temperature)
            np.testing.assert_allclose(done.logprobs, expected, atol=2e-5)
            entropy = -(table.exp() * table).sum(-1).numpy()
            np.testing.assert_allclose([e.lower for e in done.entropies], entropy[:2], atol=2e-5)


def test_the_draw_follows_the_distribution(model, tokenizer):
    ids = tokenizer.encode("the capital")
    engine = engine_of(model, tokenizer, slots=64)

    async def main():
        requests = (Request(ids, stream("draw", i), 1) for i in range(3000))
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    counts = np.bincount([done.token_ids[0] for done in asyncio.run(main())], minlength=600) / 3000
    table, _ = learner_logprobs(model, ids, (0,))
    assert np.abs(counts - table[0].exp().numpy()).sum() < 0.35
    assert np.abs(counts - table[0].exp().numpy()).max() < 0.03


def test_greedy_takes_the_most_likely_token(model, tokenizer):
    ids = tokenizer.encode("add multiply what")
    done = asyncio.run(engine_of(model, tokenizer).generate(Request(ids, 1, 5, temperature=0.0)))
    table, _ = learner_logprobs(model, ids, done.token_ids)
    assert list(done.token_ids) == table.argmax(-1).tolist()


def test_a_continuation_feeds_only_what_is_new_and_a_branch_copies_its_parent(model, tokenizer):
    engine = engine_of(model, tokenizer)
    prompt = tokenizer.encode("the capital of France is Paris , 12 plus 30 is 42")
    result = tokenizer.encode(" answer 42 step")

    async def main():
        first = await engine.generate(Request(prompt, stream(0), 7))
        fed = [engine.counters.prefilled]
        context = prompt + first.token_ids + result
        await asyncio.gather(*(engine.generate(Request(context, stream(i), 9)) for i in range(4)))
        fed.append(engine.counters.prefilled)
        await engine.generate(Request(prompt, stream(9), 3))
        fed.append(engine.counters.prefilled)
        return fed

    # The last written token was never fed, so it comes with the result; the result's last token is fed for
    # its logits and counts as decoding.
    assert asyncio.run(main()) == [
        len(prompt) - 1,
        len(prompt) - 1 + len(result),
        len(prompt) - 1 + len(result),
    ]


@pytest.mark.parametrize("num_kept", [0, 3])
def test_what_a_rollback_keeps_is_not_fed_again(model, tokenizer, num_kept):
    """A backtracked trajectory goes on from its prompt, or from inside the turn whose call failed."""
    engine = engine_of(model, tokenizer)
    prompt = tokenizer.encode("the capital of France is Paris , 12 plus 30 is 42")
    failure = tokenizer.encode(" answer 42 step")

    async def main():
        turn = await engine.generate(Request(prompt, stream(0), 7))
        await engine.generate(Request(prompt + turn.token_ids + failure, stream(1), 5))
        fed = engine.counters.prefilled
        again = await engine.generate(Request(prompt + turn.token_ids[:num_kept], stream(2), 7))
        return fed, engine.counters.prefilled, turn, again

    before, after, turn, again = asyncio.run(main())
    assert before == len(prompt) - 1 + len(failure)
    assert after == before
    _, expected = learner_logprobs(model, prompt + turn.token_ids[:num_kept], again.token_ids)
    np.testing.assert_allclose(again.logprobs, expected, atol=2e-5)


def test_new_weights_drop_what_was_cached(model, tokenizer):
    engine = engine_of(model, tokenizer)
    prompt = tokenizer.encode("the capital of France")

    async def main():
        await engine.generate(Request(prompt, 1, 3))
        await engine.load_weights(1)
        await engine.generate(Request(prompt, 1, 3))

    asyncio.run(main())
    assert engine.counters.prefilled == 2 * (len(prompt) - 1)


def test_more_requests_than_slots(model, tokenizer):
    requests = [Request(tokenizer.encode("solve" + " add" * i), stream(i), 5 + i % 4) for i in range(23)]

    async def main(slots):
        engine = engine_of(model, tokenizer, slots)
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    few, many = asyncio.run(main(2)), asyncio.run(main(32))
    assert [d.token_ids for d in few] == [d.token_ids for d in many]


def test_cancelling_frees_the_slot_at_once(model, tokenizer):
    sampler, going = waits_at(3)
    engine = engine_of(model, tokenizer, slots=1, sampler=sampler)

    async def main():
        long = asyncio.create_task(engine.generate(Request(tokenizer.encode("add"), 1, 250)))
        await steps(engine, 3)
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        going.set()
        done = await engine.generate(Request(tokenizer.encode("solve"), 2, 3))
        assert len(done.token_ids) <= 3
        assert engine.counters.steps <= 6

    asyncio.run(main())


def test_stop_strings_end_a_turn_on_bytes_and_keep_the_token(model, tokenizer):
    plain = asyncio.run(engine_of(model, tokenizer).generate(Request(tokenizer.encode("solve"), 3, 60)))
    text = tokenizer.decode(plain.token_ids)
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    request = Request(tokenizer.encode("solve"), 3, 60, (stop,))
    stopped = asyncio.run(engine_of(model, tokenizer).generate(request))
    assert stopped.finish is Finish.STOP
    size = len(stopped.token_ids)
    assert stopped.token_ids == plain.token_ids[:size]
    assert stop in tokenizer.decode(stopped.token_ids)
    assert stop not in tokenizer.decode(stopped.token_ids[:-1])


def test_a_deterministic_engine_waits_until_every_living_trajectory_waits_for_it(model, tokenizer):
    async def main(delays):
        live = LiveCount()
        engine = engine_of(model, tokenizer, slots=8, live=live)

        async def trajectory(index):
            ids = tokenizer.encode("the capital of France" + " is" * index)
            logprobs = []
            for turn in range(3):
                request = Request(ids, stream(index, turn), 5, priority=(index,))
                done = await engine.generate(request)
                logprobs.append(done.logprobs)
                await asyncio.sleep(delays[index])
                ids = ids + done.token_ids
            live.leave()
            return logprobs

        for _ in delays:
            live.enter()
        return await asyncio.gather(*map(trajectory, range(len(delays)))), engine.counters.steps

    first = asyncio.run(main([0.0, 0.001, 0.002, 0.0]))
    assert asyncio.run(main([0.002, 0.0, 0.0, 0.003])) == first


def test_among_equal_priorities_the_order_of_arrival_changes_no_bit(model, tokenizer):
    """Attempts of an evaluation at one problem have one priority; some wait for a row here."""
    count = 11

    async def main(order):
        live = LiveCount()
        engine = engine_of(model, tokenizer, slots=8, live=live)
        for _ in order:
            live.enter()

        async def attempt(index):
            ids = tokenizer.encode("the capital of France is" + " ?" * index)
            done = await engine.generate(Request(ids, stream(index), 20 - index, priority=(0,)))
            live.leave()
            return index, done.logprobs

        return dict(await asyncio.gather(*map(attempt, order)))

    first = asyncio.run(main(range(count)))
    assert asyncio.run(main(range(count - 1, -1, -1))) == first
    assert asyncio.run(main([(5 * index) % count for index in range(count)])) == first


def test_a_failure_inside_a_step_reaches_every_caller(model, tokenizer, monkeypatch):
    engine = engine_of(model, tokenizer)
    bad = Request((599, 600), 1, 3)

    async def main():
        good = replace(bad, token_ids=(5, 6))
        return await asyncio.gather(engine.generate(bad), engine.generate(good), return_exceptions=True)

    answers = asyncio.run(main())
    assert all(isinstance(answer, IndexError) for answer in answers)


def test_a_closed_engine_says_so_to_those_who_wait_and_to_those_who_come(model, tokenizer):
    engine = engine_of(model, tokenizer, slots=1)
    request = Request(tokenizer.encode("add"), 1, 250)

    async def main():
        waiting = [asyncio.create_task(engine.generate(request)) for _ in range(2)]
        for _ in range(3):
            await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        return await asyncio.gather(*waiting, engine.generate(request), return_exceptions=True)

    *waited, late = asyncio.run(main())
    assert all(isinstance(error, EngineError) for error in waited)
    assert isinstance(late, EngineError)
    assert "closed" in str(late)


@pytest.mark.parametrize(
    ("size", "new", "message"),
    [(290, 11, "290 tokens for 11 more.* 300 tokens"), (0, 5, "not 0 and 5"), (3, 0, "and 0")],
)
def test_a_request_that_cannot_be_served_is_refused_with_its_sizes(model, tokenizer, size, new, message):
    with pytest.raises(EngineError, match=message):
        asyncio.run(engine_of(model, tokenizer).generate(Request((5,) * size, 1, new)))


def test_weights_cannot_change_under_a_sequence(model, tokenizer):
    sampler, going = waits_at(1)
    engine = engine_of(model, tokenizer, sampler=sampler)

    async def main():
        task = asyncio.create_task(engine.generate(Request(tokenizer.encode("add"), 1, 250)))
        await steps(engine, 1)
        with pytest.raises(EngineError, match="1 sequences were being written"):
            await engine.load_weights(2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        going.set()
        await engine.load_weights(2)

    asyncio.run(main())
    assert engine.info().policy_version == 2


def test_a_cancelled_sequence_leaves_what_it_computed_for_others(model, tokenizer):
    engine = engine_of(model, tokenizer)
    prompt = tokenizer.encode("the capital of France is Paris , 12 plus 30")

    async def main():
        task = asyncio.create_task(engine.generate(Request(prompt, 1, 200)))
        await steps(engine, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        fed = engine.counters.prefilled
        await engine.generate(Request(prompt, 2, 3))
        return fed

    assert asyncio.run(main()) == engine.counters.prefilled == len(prompt) - 1


def test_a_bracket_of_entropies_is_said_to_be_one(model, tokenizer):
    request = Request(tokenizer.encode("the capital"), 1, 4, entropy_first_k=4)

    def entropies(top_k):
        engine = LocalEngine(model, tokenizer, num_slots=2, context_tokens=300, entropy_top_k=top_k)
        assert engine.info().exact_entropy is (top_k is None)
        return asyncio.run(engine.generate(request)).entropies

    for exact, bracket in zip(entropies(None), entropies(20), strict=True):
        assert bracket.lower < exact.lower < bracket.upper


def test_greedy_with_a_repetition_penalty_writes_what_transformers_writes(model, tokenizer):
    """Beside other requests, and over two turns: the penalty counts the whole context, prompts and results included."""
    prompts = [tokenizer.encode("the capital of France is the capital of"), tokenizer.encode("12 plus 30 is")]
    filters = TokenFilters(repetition_penalty=1.6)
    engine = engine_of(model, tokenizer)

    async def turns(ids, **settings):
        written = []
        for _ in range(2):
            done = await engine.generate(Request(ids, 1, 12, temperature=0.0, **settings))
            written += done.token_ids
            ids += done.token_ids
        return written

    async def main():
        every = [turns(ids, filters=filters) for ids in prompts] + [turns(ids) for ids in prompts]
        return await asyncio.gather(*every)

    *penalised, plain, _ = asyncio.run(main())
    for ids, written in zip(prompts, penalised, strict=True):
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
            repetition_penalty=1.6,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        assert written == expected
    assert plain != penalised[0]
