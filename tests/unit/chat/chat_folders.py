"""Tokenizer folders that are not the ordinary one: byte fallback, Unicode folding, a damaged file."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from model_folders import TEMPLATE

ROLE_MARK = "<s>"
TURN_END = "</s>"


def write_settings(folder, template=TEMPLATE, **settings):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_byte_fallback(folder: Path) -> Path:
    """Like Llama 2: blanks are U+2581, one is put in front, and what has no token is spelt in byte tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "\u2581abcdefghijklmnopqrstuvwxyz<>/|_0123456789."
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("\u2581", "a"), ("<", "s"), ("\u00e9", "t")]
    tokens = ["<unk>", ROLE_MARK, TURN_END, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "\u00e9"]
    tokens += ["".join(merge) for merge in merges]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", ROLE_MARK, TURN_END)])
    tokenizer.save(str(folder / "tokenizer.json"))
    begin = {"__type": "AddedToken", "content": ROLE_MARK, "normalized": False, "special": True}
    write_settings(folder, eos_token=TURN_END, bos_token=begin)
    return folder


def write_folding(folder: Path) -> Path:
    """A byte-level tokenizer that folds look-alikes (NFKC) into ASCII before it encodes."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_settings(folder)
    return folder


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
