import json

import pytest
from chat_folders import ROLE_MARK, TURN_END, edit_json, write_byte_fallback, write_settings
from hypothesis import given
from hypothesis import strategies as st

from model_folders import SPECIAL, TAGS, TEMPLATE, write_tokenizer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError
from ramify.core.messages import Message

CHAT = (
    Message.of("system", "  You are terse.\n"),
    Message.of("user", "What is 12 + 30?\n"),
    Message.of("assistant", '<think> easy </think> "42" & <b>'),
    Message.of("user", "  caf\u00e9 \u4e2d\u6587 \U0001f600  "),
)
HOSTILE = st.lists(
    st.one_of(st.text(max_size=8), st.sampled_from([*SPECIAL, *TAGS, ROLE_MARK, TURN_END, "<0x41>", " "])),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "folder"
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def byte_level(folder):
    return ChatTokenizer(folder)


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory):
    return ChatTokenizer(write_byte_fallback(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def transformers_byte_fallback(byte_fallback):
    return auto(byte_fallback.folder)


@pytest.fixture
def broken(tmp_path):
    """A good folder for a test to damage."""
    write_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def auto(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def joined(tokenizer, ids):
    return b"".join(tokenizer.token_bytes[index] for index in ids)


def refusal(folder, act=lambda tokenizer: tokenizer):
    with pytest.raises(DataError) as caught:
        act(ChatTokenizer(folder))
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


# ids are the record


@pytest.mark.integration
@given(HOSTILE)
def test_byte_level_tokens_spell_the_text_with_and_without_added_tokens(byte_level, text):
    for ids in (byte_level.encode(text), byte_level.encode_plain(text)):
        assert joined(byte_level, ids) == text.encode()
        assert byte_level.decode(ids) == text


@given(st.text())
def test_byte_fallback_tokens_spell_a_text_that_continues_another(byte_fallback, text):
    ids = byte_fallback.encode_plain(text)
    assert joined(byte_fallback, ids) == text.replace("\u2581", " ").encode()


def test_byte_fallback_reads_byte_tokens_as_bytes_and_their_spelling_as_text(byte_fallback):
    assert byte_fallback.token_bytes[3 + 0x41] == b"A"
    assert byte_fallback.token_bytes[3 + 0xE2] == b"\xe2"
    assert byte_fallback.decode(byte_fallback.encode("<0x41>")) == " <0x41>"
    assert byte_fallback.decode(byte_fallback.encode("<0x41>", continues=True)) == "<0x41>"
    assert byte_fallback.decode(byte_fallback.encode("a</s>the", continues=True)) == "a</s> the"
    ids = byte_fallback.encode("\u20ac")
    assert byte_fallback.decode(ids) == " \u20ac"
    assert byte_fallback.decode(ids[:-1]) == " \ufffd"


def test_a_torn_character_is_replaced_and_whole_again_when_its_tokens_meet(byte_level):
    ids = byte_level.encode("x\U0001f600y")
    assert len(ids) == 6
    assert byte_level.decode(ids[:3]) == "x\ufffd"
    assert byte_level.decode(ids[3:]).endswith("y")
    assert byte_level.decode(ids[3:]).startswith("\ufffd")
    assert byte_level.decode(ids[:3] + ids[3:]) == "x\U0001f600y"


def test_ids_behind_the_last_token_say_nothing(byte_level):
    size = byte_level.vocab_size
    ids = byte_level.encode("sum")
    assert byte_level.decode((size, *ids, size + 7)) == "sum"


def test_every_id_has_bytes_and_counting_agrees_with_encoding(byte_level):
    assert byte_level.vocab_size == 600
    assert all(byte_level.token_bytes)
    texts = ["", "solve the sum", "<think> x </think><|im_end|>", "\ud800"]
    assert byte_level.count_tokens(texts) == [len(byte_level.encode(text)) for text in texts]


@given(HOSTILE)
def test_the_number_of_tokens_lies_between_its_bounds(byte_level, byte_fallback, text):
    for tokenizer in (byte_level, byte_fallback):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text)) <= tokenizer.most_tokens(text)


def test_lone_surrogates_become_the_replacement_character(byte_level):
    assert byte_level.decode(byte_level.encode_plain("a\ud800b\udcff")) == "a\ufffdb\ufffd"
    assert byte_level.decode(byte_level.encode("a\ud800b")) == "a\ufffdb"
    assert byte_level.decode(byte_level.encode_plain("\ud83d\ude00")) == "\U0001f600"


def test_truncation_and_padding_saved_in_the_file_are_not_applied(broken):
    text = "solve the number sum tool call search result answer is user"
    whole = ChatTokenizer(broken).encode(text)
    edit_json(
        broken / "tokenizer.json",
        truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        },
    )
    tokenizer = ChatTokenizer(broken)
    assert tokenizer.encode(text) == tokenizer.encode_plain(text) == whole
    assert tokenizer.count_tokens([text]) == [len(whole)]


def test_special_tokens_of_the_model_table_need_not_be_spelt_in_its_alphabet(broken):
    path = broken / "tokenizer.json"
    raw = json.loads(path.read_text())
    mark = "<\uff5cend of turn\uff5c>"
    number = raw["model"]["vocab"][mark] = len(raw["model"]["vocab"])
    for token in raw["added_tokens"]:
        token["id"] += token["id"] >= number
    path.write_text(json.dumps(raw))
    assert ChatTokenizer(broken).token_bytes[number] == mark.encode()


def test_added_tokens_that_the_library_numbers_otherwise_are_refused(broken):
    """It numbers them in their order, behind the model's own table; ours would stand for other texts."""
    path = broken / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["model"]["vocab"]["zz"] = len(raw["model"]["vocab"])
    path.write_text(json.dumps(raw))
    assert "the tokenizers library gives it" in refusal(broken)


# foreign text


@given(HOSTILE)
def test_foreign_text_never_becomes_an_added_token(byte_level, byte_fallback, text):
    for tokenizer in (byte_level, byte_fallback):
        assert tokenizer.added_ids.isdisjoint(tokenizer.encode_plain(text))


def test_trusted_text_does_become_added_tokens(byte_level):
    for content in (*SPECIAL, *TAGS):
        (index,) = byte_level.encode(content)
        assert index in byte_level.added_ids
        assert len(byte_level.encode_plain(content)) > 1


# the chat template

NAMESPACE = """\
{%- set ns = namespace(system='', users=0) -%}
{% for m in messages if m['role'] == 'system' %}
    {% set ns.system = ns.system ~ (m.content | trim) %}
{% endfor %}
{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {%- if m.role == 'user' %}
        {% set ns.users = ns.users + 1 %}
        {{- '[' ~ loop.index0 ~ '/' ~ loop.length ~ '] ' }}
    {%- endif %}
    {% if ns.users == 1 and ns.system %}
<<{{ ns.system }}>>
    {% endif %}
  {{ m.content.strip() }}{{ '|' if not loop.last else eos_token }}
{% endfor %}
{%- if add_generation_prompt %}

assistant:
{% endif %}
"""
JSON = """\
{% macro show(value) %}<{{ value | tojson }}>{% endmacro %}
{% for m in messages %}
{{ show(m) }} {{ m | tojson(indent=2) }}
{{ {'z': m.content, 'a': [1, none, true]} | tojson(sort_keys=true, separators=(',', ':')) }}
{{ m.content | tojson(ensure_ascii=true) }}
{% endfor %}
"""
DEFINED = """\
{{ bos_token is defined }} {{ sep_token is defined }} {{ pad_token }} {{ eos_token }} {{ unk_token | default('none') }}
{{ tools is none }} {{ documents is none }} {{ custom is defined }} {{ enable_thinking | default(true) }}
{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role | upper }}: {{ m['content'] | trim }}
{% endfor %}
{% for m in messages[::-1] %}{{ m.role[:1] }}{% endfor %}
{{ messages[-1].content.split(' ') | length }}{{ '%s-%d' | format('x', 3) }}
"""
GENERATION = """\
{% for m in messages %}
    {% if m.role == 'assistant' %}
        {% generation %}{% set said = m.content %}<a>{{ said }}{{ loop.index }}</a>{% endgeneration %}
    {% else %}
<u>{{ m.content }}</u>
    {% endif %}
{% endfor %}{{ said is defined }}
"""


@pytest.mark.parametrize("template", [TEMPLATE, NAMESPACE, JSON, DEFINED, GENERATION], ids=range(5))
@pytest.mark.parametrize("chat", [CHAT, CHAT[1:2]], ids=["long", "short"])
def test_template_and_ids_are_those_of_transformers(tmp_path, template, chat):
    write_tokenizer(tmp_path)
    write_settings(tmp_path, template, pad_token="<|endoftext|>")
    ours, theirs = ChatTokenizer(tmp_path), auto(tmp_path)
    plain = [{"role": message.role, "content": message.text} for message in chat]
    text = ours.chat_text(chat)
    assert text == theirs.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    ids = theirs.apply_chat_template(plain, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert list(ours.encode(text)) == ids


@given(HOSTILE)
def test_byte_fallback_ids_are_those_of_transformers(byte_fallback, transformers_byte_fallback, text):
    theirs = transformers_byte_fallback
    assert list(byte_fallback.encode(text)) == theirs(text, add_special_tokens=False)["input_ids"]


def test_a_template_in_the_settings_is_used_when_there_is_no_file(broken):
    (broken / "chat_template.jinja").unlink()
    edit_json(broken / "tokenizer_config.json", chat_template="{{ messages[0].content }}!")
    assert ChatTokenizer(broken).chat_text(CHAT[1:]) == "What is 12 + 30?\n!"


def test_the_day_does_not_reach_the_prompt(broken):
    """Llama 3's templates have this date where there is no clock, so their prompts are the same with it."""
    write_settings(
        broken,
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}"
        "{{ strftime_now('|%Y-%m-%d') }}",
    )
    assert ChatTokenizer(broken).chat_text(CHAT) == "26 Jul 2024|2024-07-26"


# what ends a turn


def test_ends_of_turn_are_the_eos_token_and_those_of_the_generation_config(broken):
    assert ChatTokenizer(broken).eos_ids == {2}
    (broken / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert ChatTokenizer(broken).eos_ids == {0, 2}
    (broken / "generation_config.json").write_text('{"eos_token_id": 1}')
    tokenizer = ChatTokenizer(broken)
    assert (tokenizer.eos_id, tokenizer.eos_ids) == (2, {1, 2})
    (broken / "generation_config.json").write_text('{"temperature": 1.0}')
    assert ChatTokenizer(broken).eos_ids == {2}


def test_eos_may_be_a_table(broken):
    edit_json(broken / "tokenizer_config.json", eos_token={"content": "<|endoftext|>", "special": True})
    assert ChatTokenizer(broken).eos_id == 0


# damaged folders


def test_missing_files_are_named(broken, tmp_path):
    assert "tokenizer.json" in refusal(tmp_path / "nowhere")
    (broken / "chat_template.jinja").unlink()
    assert "chat_template.jinja" in refusal(broken)
    (broken / "tokenizer_config.json").unlink()
    refusal(broken)
    (broken / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal(broken)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b'{"a": \xff}', b"{}", b'{"model": 3}'])
def test_a_damaged_tokenizer_file_is_one_line(broken, content):
    (broken / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json" in refusal(broken)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"x"', b"\xff"])
def test_a_damaged_companion_is_one_line(broken, name, content):
    (broken / name).write_bytes(content)
    assert name in refusal(broken)


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}", "{{ a b }}", "{% generation %}", "{% frob %}"]
)
def test_a_template_that_cannot_be_read_is_one_line(broken, template):
    (broken / "chat_template.jinja").write_text(template)
    assert "chat template cannot be read" in refusal(broken)


def test_a_template_that_is_no_text_is_one_line(broken):
    (broken / "chat_template.jinja").write_bytes(b"\xff\xfe")
    assert "chat_template.jinja" in refusal(broken)


@pytest.mark.parametrize("eos", [None, "", "<|nowhere|>", 7, {"no": "content"}, []])
def test_a_missing_or_strange_eos_token_is_one_line(broken, eos):
    edit_json(broken / "tokenizer_config.json", eos_token=eos)
    assert "eos_token" in refusal(broken)


@pytest.mark.parametrize("eos", ["2", [2, "x"], 1.5])
def test_strange_ids_in_the_generation_config_are_one_line(broken, eos):
    (broken / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    assert "eos_token_id" in refusal(broken)


@pytest.mark.parametrize("charsmap", ["", "BAAAAP////8="])
def test_a_panic_of_the_library_is_one_line(broken, charsmap):
    edit_json(broken / "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap})
    message = refusal(broken, lambda tokenizer: tokenizer.encode("what is"))
    assert "the tokenizers library breaks on its files" in message


def test_an_unknown_kind_of_decoder_is_one_line(broken):
    edit_json(broken / "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    assert "byte-level or byte-fallback" in refusal(broken)
