"""A seeded generator of damaged model folders: each differs from a good one in one place, and none can be used."""

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

NAN, INF = float("nan"), float("inf")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Damage:
    """What is done to a good folder; `about` is a word that the refusal must hold."""

    name: str
    about: str
    do: Callable[[Path], object]

    def __str__(self) -> str:
        return self.name


def all_damages() -> list[Damage]:
    """Every one that there is."""
    kinds = (_configs(), _tokenizers(), _settings(), _templates(), _weights(random.Random(0)), _files())
    return [damage for kind in kinds for damage in kind]


def damages(seed: int, count: int) -> list[Damage]:
    """So many different ones, drawn from all kinds in turn."""
    rng = random.Random(seed)
    kinds = [
        list(kind) for kind in (_configs(), _tokenizers(), _settings(), _templates(), _weights(rng), _files())
    ]
    for kind in kinds:
        rng.shuffle(kind)
    drawn: list[Damage] = []
    while len(drawn) < count:
        assert any(kinds), f"there are {len(drawn)} only"
        drawn += [kind.pop() for kind in kinds if kind]
    return drawn[:count]


def change(folder: Path, name: str, *keys: str | int, value: Any) -> None:
    """Set one value in a JSON file; DROP takes the key out."""
    path = folder / name
    record = json.loads(path.read_text()) if path.is_file() else {}
    inner = record
    for key in keys[:-1]:
        inner = inner[key]
    if value is DROP:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    path.write_text(json.dumps(record))


DROP = object()


def _shown(value: Any) -> str:
    return "nothing" if value is DROP else repr(value)[:30]


def _configs() -> Iterator[Damage]:
    sizes = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings",
    )  # fmt: skip
    wrong: list[tuple[str, Any]] = [
        (key, value) for key in sizes for value in ("64", 0, -1, 1.5, NAN, 1e300, 10**30, True, [], {}, [64])
    ]
    # Numbers that are possible, beside weights of another shape.
    wrong += [("vocab_size", 601), ("vocab_size", 20), ("hidden_size", 128), ("intermediate_size", 95)]
    wrong += [("num_hidden_layers", 1), ("num_hidden_layers", 3), ("num_hidden_layers", 900)]
    wrong += [("num_attention_heads", 8), ("num_key_value_heads", 1), ("head_dim", 32), ("head_dim", None)]
    wrong += [(key, DROP) for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")]
    wrong += [("model_type", value) for value in (DROP, None, 3, "", "mamba", ["qwen3"], "llama", "qwen2")]
    wrong += [("rms_norm_eps", value) for value in (0, -1, "x", NAN, INF, None, 2)]
    wrong += [("eos_token_id", value) for value in (600, -1, "2", [2, 600], 1.5, True)]
    wrong += [("tie_word_embeddings", value) for value in (False, "yes", 3)]
    wrong += [
        ("quantization_config", value) for value in ({"quant_method": "gptq", "bits": 4}, {}, "int8", 3)
    ]
    wrong += [("attention_dropout", value) for value in (0.1, "0.1", [0])]
    wrong += [("hidden_act", value) for value in ("gelu", 5, None, "nope")]
    wrong += [("layer_types", value) for value in ("full_attention", ["full_attention"], [1, 2], 7)]
    wrong += [("attention_bias", value) for value in (True, "yes")]
    wrong += [
        ("rope_scaling", value)
        for value in ("x", 3, [], {"type": "dynamic"}, {"type": "linear", "factor": NAN})
    ]
    wrong += [("architectures", 3), ("pad_token_id", 10**6), ("transformers_weights", "../x.safetensors")]
    for key, value in wrong:
        yield Damage(
            f"config.json {key} = {_shown(value)}",
            "" if value in (601, 128, 95, "qwen2") else "config.json",
            lambda folder, key=key, value=value: change(folder, "config.json", key, value=value),
        )
    for value in (0, 1, -3, NAN, INF, "x", [], 1e13, True):
        rope = {"rope_type": "default", "rope_theta": value}
        yield Damage(
            f"config.json rope_theta = {_shown(value)}",
            "rope_theta",
            lambda folder, rope=rope: change(folder, "config.json", "rope_parameters", value=rope),
        )

    def foreign_code(folder: Path) -> None:
        change(folder, "config.json", "auto_map", value={"AutoModelForCausalLM": "evil.Model"})
        change(folder, "config.json", "model_type", value="evil")
        (folder / "evil.py").write_text("raise SystemExit('ran')")

    yield Damage("config.json with remote code", "config.json", foreign_code)


def _tokenizers() -> Iterator[Damage]:
    values = (3, "x", -1.5, [1], ["x"], [[]], {"a": 1}, {"a": "b"}, {"type": "Nope"}, True)
    for keys in (("model",), ("model", "vocab"), ("model", "merges"), ("added_tokens",), ("decoder",)):
        for value in (*values, None) if keys != ("added_tokens",) else values:
            yield _in_tokenizer(keys, value)
    for keys in (("pre_tokenizer",), ("normalizer",), ("model", "type"), ("model", "unk_token")):
        for value in (3, [1], {"type": "Nope"}, {"a": 1}):
            yield _in_tokenizer(keys, value)
    for value in (-1, 10**9, 10**30, "0", 1.5, None, True, DROP, 77):
        yield _in_tokenizer(("added_tokens", 0, "id"), value)
    for value in (None, 3, "", [], DROP):
        yield _in_tokenizer(("added_tokens", 0, "content"), value)

    def sparse(folder: Path) -> None:
        change(folder, "tokenizer.json", "model", "vocab", "zzzz", value=2**31)

    def larger(folder: Path) -> None:
        raw = json.loads((folder / "tokenizer.json").read_text())
        last = max(token["id"] for token in raw["added_tokens"]) + 1
        raw["added_tokens"].append(raw["added_tokens"][0] | {"id": last, "content": "<|more|>"})
        (folder / "tokenizer.json").write_text(json.dumps(raw))

    yield Damage("tokenizer.json with an id of 2**31", "tokenizer.json", sparse)
    yield Damage("tokenizer.json larger than the embedding", "vocab_size", larger)


def _in_tokenizer(keys: tuple[str | int, ...], value: Any) -> Damage:
    return Damage(
        f"tokenizer.json {'.'.join(map(str, keys))} = {_shown(value)}",
        "tokenizer",
        lambda folder: change(folder, "tokenizer.json", *keys, value=value),
    )


def _settings() -> Iterator[Damage]:
    def of(name: str, key: str, value: Any) -> Damage:
        return Damage(
            f"{name} {key} = {_shown(value)}", "token", lambda folder: change(folder, name, key, value=value)
        )

    for value in (
        DROP,
        None,
        "",
        "<|nowhere|>",
        7,
        [],
        ["<|im_end|>"],
        {"no": "content"},
        {"content": 3},
        True,
    ):
        yield of("tokenizer_config.json", "eos_token", value)
    for value in (3, ["x"], {"a": "b"}):
        yield of("tokenizer_config.json", "pad_token", value)
    for value in (5, ["x"]):
        yield of("tokenizer_config.json", "tokenizer_class", value)
    for value in ("x", [1], {"0": 3}):
        yield of("tokenizer_config.json", "added_tokens_decoder", value)
    for value in ("2", [2, "x"], 1.5, -1, 600, 10**30, [[2]], {"a": 2}, True, [True]):
        yield of("generation_config.json", "eos_token_id", value)


def _templates() -> Iterator[Damage]:
    sources = {
        "raises": "{{ raise_exception('not today') }}",
        "an undefined name": "{{ nothing.at.all }}",
        "an unknown filter": "{{ messages | explode }}",
        "a wrong operand": "{{ messages[0].content + 1 }}",
        "an end that is missing": "{% for m in messages %}{{ m.content }}",
        "an unknown statement": "{% frob %}",
        "no statement": "{{ a b }}",
        "a sandbox escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "a division by zero": "{{ 1 / 0 }}{{ messages[0].content }}",
        "a key error": "{{ {}['x'].y }}",
        "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "a long range": "{% for i in range(10**9) %}x{% endfor %}",
        "a loop that hardly ends": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "doubling": "{% set n = namespace(x='ab') %}{% for i in range(50) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "a huge constant": "{{ 'a' * 10**10 }}",
        "a huge width": "{{ '%2000000000d' | format(3) }}",
        "a huge text": "{{ messages[0].content * 10**9 }}",
        "a wide filter": "{{ messages[0].content | center(10**10) }}",
        "no message": "Once upon a time.",
        "nothing": "",
        "an include": "{% include '/etc/passwd' %}",
        "an import": "{% import 'os' as os %}{{ os.getcwd() }}",
        "a message that is changed": "{{ messages[0].content | upper | replace('\u4e2d', '') }}",
    }
    for name, source in sources.items():
        yield Damage(
            f"chat_template.jinja with {name}",
            "chat template",
            lambda folder, source=source: (folder / "chat_template.jinja").write_text(
                source, encoding="utf-8"
            ),
        )
    for value in (3, None, {"default": "x"}, ["x"], [{"name": "other", "template": "x"}]):

        def in_settings(folder: Path, value: Any = value) -> None:
            (folder / "chat_template.jinja").unlink()
            change(folder, "tokenizer_config.json", "chat_template", value=value)

        yield Damage(f"chat_template = {_shown(value)}", "chat template", in_settings)


def _weights(rng: random.Random) -> Iterator[Damage]:
    yield from _contents(rng)
    yield from _tensors()
    for name, record in _INDICES:
        yield Damage(f"{INDEX} with {name}", "", lambda folder, record=record: _shard(folder, record))


def _contents(rng: random.Random) -> Iterator[Damage]:
    def torn(share: float) -> Callable[[bytes], bytes]:
        return lambda content: content[: int(len(content) * share)]

    shares = (0, 0.0001, *(rng.random() for _ in range(6)), 0.99999)
    edits = {f"cut after {share:.4f}": torn(share) for share in shares}
    others = {
        "text": b"not a file of weights",
        "a pickle": b"\x80\x04\x95pickle",
        "a head without end": struct.pack("<Q", 2**63) + b"{}",
        "a list for a head": struct.pack("<Q", 2) + b"[]",
        "a head that is cut": struct.pack("<Q", 30) + b'{"a":{"dtype":"F32","shape":[2]}',
    }
    edits |= {name: lambda _, content=content: content for name, content in others.items()}
    for name, edit in edits.items():

        def do(folder: Path, edit: Callable[[bytes], bytes] = edit) -> None:
            (folder / WEIGHTS).write_bytes(edit((folder / WEIGHTS).read_bytes()))

        yield Damage(f"{WEIGHTS} holds {name}", WEIGHTS, do)


def _tensors() -> Iterator[Damage]:
    names = (
        "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.0.self_attn.k_norm.weight", "model.norm.weight",
    )  # fmt: skip
    edits: list[tuple[str, str, Callable[[dict[str, torch.Tensor]], object]]] = []
    for key in names:
        edits += [
            (f"no {key}", key, lambda held, key=key: held.pop(key)),
            (f"a cut {key}", key, lambda held, key=key: held.update({key: held[key][:-1].clone()})),
            (f"int8 {key}", key, lambda held, key=key: held.update({key: held[key].to(torch.int8)})),
        ]
        edits += [
            (
                f"{value} in {key}",
                key,
                lambda held, key=key, value=value: held[key].view(-1)[3:4].fill_(value),
            )
            for value in (NAN, INF, -INF)
        ]
    edits += [(f"zeros in {key}", key, lambda held, key=key: held[key].zero_()) for key in names[:3]]
    edits += [
        ("zeros everywhere", "zeros", lambda held: [weight.zero_() for weight in held.values()]),
        ("one more", "model.extra", lambda held: held.update({"model.extra": torch.ones(3)})),
        (
            "other names",
            "missing",
            lambda held: [held.update({f"x.{name}": held.pop(name)}) for name in [*held]],
        ),
        ("nothing", "missing", lambda held: held.clear()),
    ]
    for name, about, edit in edits:

        def do(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object] = edit) -> None:
            held = load_file(folder / WEIGHTS)
            edit(held)
            save_file(held, folder / WEIGHTS, metadata={"format": "pt"})

        yield Damage(f"{WEIGHTS} with {name}", about, do)


def _shard(folder: Path, record: Any) -> None:
    """Two files for one, and an index."""
    held = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    where = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(sorted(held))}
    for file in sorted({*where.values()}):
        part = {name: held[name] for name in where if where[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    content = record(where) if callable(record) else record
    (folder / INDEX).write_text(content if isinstance(content, str) else json.dumps(content))


_INDICES: tuple[tuple[str, Any], ...] = (
    ("no JSON", "{"),
    ("no object", "[]"),
    ("no map", {}),
    ("a map that is a list", {"weight_map": []}),
    ("an empty map", {"weight_map": {}}),
    ("a path out of the folder", lambda where: {"weight_map": dict.fromkeys(where, "../good/model.safetensors")}),
    ("an absolute path", lambda where: {"weight_map": dict.fromkeys(where, "/etc/passwd")}),
    ("the parent folder", lambda where: {"weight_map": dict.fromkeys(where, "..")}),
    ("a pickle", lambda where: {"weight_map": dict.fromkeys(where, "pytorch_model.bin")}),
    ("a number for a name", lambda where: {"weight_map": dict.fromkeys(where, 3)}),
    ("a missing shard", lambda where: {"weight_map": where | {"lm_head.weight": "part-7.safetensors"}}),
    ("the wrong shard", lambda where: {"weight_map": dict.fromkeys(where, "part-0.safetensors")}),
    ("a tensor that is nowhere", lambda where: {"weight_map": where | {"model.more": "part-0.safetensors"}}),
    ("one shard only", lambda where: {"weight_map": {k: v for k, v in where.items() if v[5] == "0"}}),
)  # fmt: skip


def _files() -> Iterator[Damage]:
    texts = {
        "nothing": b"",
        "half of it": None,
        "no UTF-8": b'{"a": "\xff\xfe"}',
        "a list": b"[1]",
        "null": b"null",
        "a text": b'"x"',
        "deep lists": b"[" * 100_000 + b"]" * 100_000,
        "lists 900 deep": b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
        "a number of 5,000 digits": b'{"vocab_size": ' + b"9" * 5000 + b"}",
        "a mark of byte order": b"\xef\xbb\xbf{}",
        "NUL": b"\0" * 50,
    }
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        for text, content in texts.items():

            def write(folder: Path, name: str = name, content: bytes | None = content) -> None:
                whole = (folder / name).read_bytes()
                (folder / name).write_bytes(whole[: len(whole) // 2] if content is None else content)

            yield Damage(f"{name} holds {text}", name, write)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", WEIGHTS):

        def folder_for_file(folder: Path, name: str = name) -> None:
            (folder / name).unlink()
            (folder / name).mkdir()

        yield Damage(f"{name} is a folder", name, folder_for_file)
    for name in ("config.json", "tokenizer.json", WEIGHTS):

        def loop(folder: Path, name: str = name) -> None:
            (folder / name).unlink()
            (folder / name).symlink_to(name)

        yield Damage(f"{name} is a link to itself", "", loop)
        yield Damage(f"{name} is missing", "", lambda folder, name=name: (folder / name).unlink())

    def a_file(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.write_text("x")

    yield Damage("a file for the folder", "", a_file)
    yield Damage("no folder", "", lambda folder: shutil.rmtree(folder))
