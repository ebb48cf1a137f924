"""Every key that names a file or a folder, in every kind of recipe, with each kind of wrong path: one line that names the place."""

import pytest

from e2e_runs import EVAL, SFT, TRAIN, overrides, write_lines, write_task

FILE = ("missing", "folder", "below a file", "loop", "long name", "empty", "binary")
FOLDER = ("missing", "file", "below a file", "loop", "long name", "empty folder")
NEW_FILE = ("folder", "below a file", "long name", "binary", "loop")
NEW_FOLDER = ("file", "below a file", "loop", "long name")

JUDGE = "reward.judge={{url='http://127.0.0.1:9/v1', model='m', cache='{}'}}"
REWARD = ("reward={{name='parts', own=[{{path='{}', function='score'}}]}}",)
SCRIPT = "engine={{name='scripted', script='{}'}}"
KEYS = [
    (("train", "rollout", "eval", "sft", "dpo", "doctor"), ("model.path={}",), FOLDER),
    (("train", "rollout", "sft", "dpo"), ("data.train={}",), FILE),
    (("doctor",), ("data.train={}",), ("missing", "folder", "below a file", "loop", "long name")),
    (("eval",), ("data.test={}",), FILE),
    (("train", "rollout"), ("data.exclude=['{}']",), FILE),
    (("train", "rollout", "eval", "sft", "dpo"), ("run.dir={}",), NEW_FOLDER),
    (("train", "rollout", "eval"), ("tools.search.corpus={}",), FILE),
    (("train", "rollout", "eval"), ("tools.search.index={}",), NEW_FOLDER),
    (("train", "rollout", "eval"), ("tools.own=[{{path='{}', function='lookup'}}]",), FILE),
    (("train", "rollout", "eval"), ("tools.cache.path={}",), NEW_FILE),
    (("train", "rollout", "eval"), ("tools.cache={{path='{}', mode='replay_or_fail'}}",), NEW_FILE),
    (("train", "rollout", "eval"), ("tools.cache={{path='{}', mode='record'}}",), NEW_FILE),
    (("train", "rollout", "eval"), ("reward.name=hierarchical", JUDGE), NEW_FILE),
    (("train", "rollout"), REWARD, FILE),
    (("rollout", "eval"), (SCRIPT,), FILE),
    (("train", "rollout"), ("rollout.branching={{name='random', rate_from='{}'}}",), FOLDER),
    (("train", "rollout"), ("rollout.branching={{name='yoked', of='{}'}}",), FOLDER),
]
CASES = [
    pytest.param(command, settings, kind, id=f"{command} {settings[-1].split('=')[0]} {kind}")
    for commands, settings, kinds in KEYS
    for number, command in enumerate(commands)
    # One command shows that every kind of path is told; of the others a few, that they look at all.
    for kind in (kinds[2 * (number - 1) % len(kinds) :][:2] if number else kinds)
]


def wrong(folder, kind):
    """A path that is wrong in this way."""
    folder.mkdir()
    path = folder / "thing.jsonl"
    match kind:
        case "folder" | "empty folder":
            path.mkdir()
        case "file":
            path.write_text("mine")
        case "below a file":
            path.write_text("mine")
            path = path / "inner.jsonl"
        case "loop":
            path.symlink_to(path)
        case "long name":
            path = folder / ("n" * 300 + ".jsonl")
        case "empty":
            path.write_bytes(b"")
        case "binary":
            path.write_bytes(bytes(range(256)) * 20)
    return path


@pytest.mark.parametrize(("command", "settings", "kind"), CASES)
def test_a_wrong_path_is_one_line(refused, tmp_path, model_folder, command, settings, kind):
    text = {"eval": EVAL, "sft": SFT, "dpo": SFT}.get(command, TRAIN)
    recipe = write_task(tmp_path / "task", model_folder, text)
    prompt = [{"role": "user", "content": "?"}]
    pairs = write_lines(tmp_path / "pairs.jsonl", [{"prompt": prompt, "chosen": "a", "rejected": "b"}])
    path = wrong(tmp_path / "wrong", kind)
    extra = (f"data.train={pairs}", "learner.beta=0.1") if command == "dpo" else ()
    words = (*extra, *(setting.format(path) for setting in settings))
    message = refused(command, recipe, *overrides(*words))
    assert str(path)[:60] in message
    assert len(message) < 900
