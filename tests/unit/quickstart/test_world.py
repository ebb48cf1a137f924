import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Message, Problem
from ramify.quickstart.demonstrator import write_demonstrations
from ramify.quickstart.world import TAGS, train_world_tokenizer
from ramify.quickstart.world_files import WorldSettings, build_world
from ramify.quickstart.world_questions import HELD_OUT_NAMES, OPERATORS, SYNONYMS, TRAINING_NAMES
from ramify.tools.passage_index import PassageIndex
from said import tree_of

TEXTS = [
    "<think> find Mimo area</think><search> Mimo area</search> <result>\n- Mimo area 56\n</result>",
    ' <python> print("=", 53 * 41)</python> <result>\n= 2173\n</result><answer> \\boxed{ 2173 }</answer>',
    "anything else: naïve, 日本語, \t\r\n 12345 \U0001f600 </resul",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    train_world_tokenizer(path)
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(folder)


def pieces(tokenizer: ChatTokenizer, text: str) -> list[str]:
    return [tokenizer.decode([index]) for index in tokenizer.encode(text)]


def test_names_words_and_small_numbers_are_one_token(tokenizer: ChatTokenizer) -> None:
    words = [
        *TRAINING_NAMES,
        *HELD_OUT_NAMES,
        *SYNONYMS,
        *sum(SYNONYMS.values(), ()),
        *OPERATORS,
        *range(100),
    ]
    assert [word for word in words if len(tokenizer.encode(f" {word}")) != 1] == []


def test_long_numbers_are_cut_in_twos_from_the_left(tokenizer: ChatTokenizer) -> None:
    assert pieces(tokenizer, " 1372") == [" 13", "72"]
    assert pieces(tokenizer, " 205") == [" 20", "5"]
    assert pieces(tokenizer, " -1500") == [" -", "15", "00"]


def test_vocabulary_is_small_and_training_is_deterministic(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    assert tokenizer.vocab_size < 850
    train_world_tokenizer(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (tokenizer.folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("difficulty", [1, 3])
def test_demonstrations_and_problems_need_no_smaller_piece(
    tokenizer: ChatTokenizer, tmp_path: Path, difficulty: int
) -> None:
    settings = WorldSettings(difficulty, 2, 2, 60, 2, num_demo_editions=10)
    files = build_world(tmp_path, settings, seed=0)
    index = PassageIndex.build(files.passages)
    path = tmp_path / "demonstrations.jsonl"

    def search(collection: str, query: str) -> str:
        return "\n".join(hit.text for hit in index.search(query, 2, collection)) or "No search results found."

    write_demonstrations(path, settings, 0, 500, search)
    renderer = TagRenderer(tokenizer)
    for line in [*path.read_text().splitlines(), *files.test.read_text().splitlines()]:
        row = json.loads(line)
        problem = Problem(row["id"], (Message.of("user", row["prompt"][0]["content"]),), ())
        ids = list(renderer.render_prompt(problem, ()))
        if "completion" in row:
            segment = tree_of(renderer, problem, row["completion"], ()).trajectories[0].segments[0]
            ids = list(segment.token_ids)
            assert tuple(ids) == tokenizer.encode(tokenizer.decode(ids))
            assert len(ids) < 300
        letters = [tokenizer.decode([i]) for i in ids if re.fullmatch(r"[A-Za-z]+", tokenizer.decode([i]))]
        assert set(letters) <= {"user", "assistant", "No"}


def test_chat_costs_five_tokens_more_than_the_question(tokenizer: ChatTokenizer) -> None:
    text = tokenizer.chat_text([Message.of("user", "what is the area of Mimo?")])
    assert text == "<|im_start|>user what is the area of Mimo?<|im_end|><|im_start|>assistant"
    assert len(tokenizer.encode(text)) == 5 + len(tokenizer.encode(" what is the area of Mimo?"))


@given(st.text())
def test_any_text_makes_the_round_trip(tokenizer: ChatTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text


def test_transformers_reads_the_same_ids_and_chat(folder: Path, tokenizer: ChatTokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert tuple(ids) == tokenizer.encode(text)
        assert theirs.decode(ids) == text
    assert len(theirs) == tokenizer.vocab_size
    assert theirs.eos_token_id == tokenizer.eos_id == 2
    assert theirs.pad_token_id == 0
    messages = [
        {"role": "user", "content": "what is 1 plus 2?"},
        {"role": "assistant", "content": "<think> a"},
    ]
    chat = theirs.apply_chat_template(messages, tokenize=False)
    assert chat == "<|im_start|>user what is 1 plus 2?<|im_end|><|im_start|>assistant<think> a<|im_end|>"
    assert theirs.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True) == (
        tokenizer.chat_text([Message.of("user", "what is 1 plus 2?")])
    )


def test_tags_are_added_but_not_special(folder: Path) -> None:
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    special = {token["content"]: token["special"] for token in added}
    assert special == {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True} | dict.fromkeys(
        TAGS, False
    )
