"""A small task with real tools, its recipes, and the command line as a child process."""

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 300.0
PASSAGES = ["Paris is the capital of France.", "12 plus 30 is 42.", "Rome is the capital of Italy."]
TRAIN = """\
[model]
path = "{model}"
[data]
train = "{folder}/problems.jsonl"
max_prompt_tokens = 200
[run]
dir = "{folder}/run"
seed = 3
threads = 1
deterministic = true
save_every = 1
keep_last = 2
[rollout]
problems_per_step = 2
n = 6
m = 3
max_tokens = 64
max_calls = 2
branching = {{ name = "bernoulli", probe_tokens = 4 }}
[engine]
name = "local"
slots = 12
[tools.search]
corpus = "{folder}/passages.jsonl"
top_k = 1
[tools.python]
timeout_seconds = 10
[sandbox]
min_level = 0
[reward]
name = "length"
[algorithm]
estimator = {{ name = "group" }}
loss = {{ name = "clip" }}
[learner]
problems_per_minibatch = 2
optimizer = {{ rate = 1e-3 }}
"""
SELFCRITIC = (
    TRAIN.replace('name = "length"', 'name = "answer"')
    + """\
[selfcritic]
cycles = 1
steps = 1
problems = 2
[dpo]
beta = 0.1
batch_size = 4
max_tokens = 300
optimizer = {{ rate = 1e-3 }}
"""
)
SYNTH = """\
[model]
path = "{model}"
[data]
train = "{folder}/problems.jsonl"
max_prompt_tokens = 200
[run]
dir = "{folder}/run"
seed = 3
threads = 1
[sampling]
max_tokens = 300
max_calls = 3
[hints]
[quality]
max_tokens = 600
[engine]
name = "scripted"
script = "{folder}/script.toml"
[tools.search]
corpus = "{folder}/passages.jsonl"
[tools.python]
timeout_seconds = 10
[sandbox]
min_level = 0
[reward]
name = "answer"
"""
SFT = """\
[model]
path = "{model}"
[data]
train = "{folder}/demonstrations.jsonl"
max_tokens = 200
[run]
dir = "{folder}/run"
[learner]
batch_size = 2
optimizer = {{ rate = 1e-3 }}
"""
DPO = """\
[model]
path = "{model}"
[data]
train = "{folder}/pairs.jsonl"
epochs = 6
max_tokens = 120
[run]
dir = "{folder}/run"
seed = 3
threads = 1
deterministic = true
save_every = 4
[learner]
beta = 0.1
batch_size = 4
token_budget = 200
optimizer = {{ rate = 1e-3 }}
"""
ATTEMPTS = """
[eval]
test = "{folder}/problems.jsonl"
every = 4
limit = 3
max_prompt_tokens = 200
max_tokens = 32
max_calls = 1
[engine]
name = "local"
slots = 4
[tools.search]
corpus = "{folder}/passages.jsonl"
[tools.python]
[sandbox]
min_level = 0
[reward]
name = "answer"
"""
EVAL = """\
[model]
path = "{model}"
[data]
test = "{folder}/problems.jsonl"
max_prompt_tokens = 200
[run]
dir = "{folder}/run"
[sampling]
attempts = 2
k = [1, 2]
max_tokens = 32
max_calls = 1
[engine]
name = "local"
[tools.search]
corpus = "{folder}/passages.jsonl"
[reward]
name = "hierarchical"
"""
SCRIPT = r"""
[[turns]]
after = 0
text = "<think> who </think><search> capital of France </search>"
entropies = [0.5]
[[turns]]
after = 0
text = "<python> print(12 + 30) </python>"
entropies = [0.3]
[[turns]]
after = 1
text = "<python> print(6 * 7) </python>"
entropies = [2.5]
[[turns]]
after = 1
text = "<search> 12 plus 30 </search>"
entropies = [0.1]
[[turns]]
after = 2
text = "<answer> \\boxed{ Paris } </answer>"
entropies = [1.5]
ends = true
[[turns]]
after = 2
text = "<think> the capital of France is Paris </think><answer> \\boxed{ 42 } </answer>"
entropies = [1.5]
ends = true
"""


def write_lines(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pairs():
    """Eight pairs; some sides use a tool, and some share their first turn and its result."""
    called = "<python> print(42) </python> <result>\n42\n</result>"
    for number in range(8):
        prompt = [{"role": "user", "content": f"what is 12 plus {number} ?"}]
        chosen = f"<think> add </think><answer> \\boxed{{ {12 + number} }} </answer>"
        rejected = f"<answer> \\boxed{{ Paris {number} }} </answer>"
        shared = called if number % 2 else ""
        unshared = called if number % 4 == 2 else ""
        yield {"prompt": prompt, "chosen": shared + unshared + chosen, "rejected": shared + rejected}


def overrides(*settings) -> list[str]:
    """Return the words of a command line that set keys, each a text "key=value" or a dictionary of them."""
    items = (
        [each] if isinstance(each, str) else [f"{key}={value}" for key, value in each.items()]
        for each in settings
    )
    return [word for texts in items for text in texts for word in ("-s", text)]


def write_task(folder: Path, model: Path, text: str = TRAIN, *, problems=None, script: str = SCRIPT) -> Path:
    """Problems, demonstrations, pairs, passages, a script and a recipe in `folder`; returns the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = [{"prompt": f"what is 12 plus {i} ?", "answer": 12 + i} for i in range(18)]
    write_lines(folder / "problems.jsonl", sums if problems is None else problems)
    prompt = [{"role": "user", "content": "what is 12 plus 30 ?"}]
    calls = [
        "<python> print(42) </python> <result>\n42\n</result>",
        "<search> Paris </search> <result>\nIt is.\n</result>",
    ]
    ends = ["<answer> \\boxed{ 42 } </answer>", "<think> so </think><answer> \\boxed{ Paris } </answer>"]
    completions = [first + second + end for first in calls for second in ["", *calls] for end in ends][:6]
    write_lines(
        folder / "demonstrations.jsonl",
        [{"prompt": prompt, "completion": completion} for completion in completions],
    )
    write_lines(folder / "pairs.jsonl", pairs())
    write_lines(folder / "passages.jsonl", [{"text": text} for text in PASSAGES])
    (folder / "script.toml").write_text(script)
    recipe = folder / "recipe.toml"
    recipe.write_text(text.format(model=model, folder=folder))
    return recipe


def start(*arguments, **environment) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "ramify", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def ramify(*arguments, **environment) -> tuple[int, str, str]:
    """Run the command line as a child process; its exit status, output and errors."""
    process = start(*arguments, **environment)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def python(code: str, *arguments, **environment) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **environment}
    )


def different(first, second, prefix=""):
    """Dotted keys of which two recipes have different values."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return set() if first == second else {prefix.removeprefix(".")}
    keys = first.keys() | second.keys()
    return set().union(*(different(first.get(key), second.get(key), f"{prefix}.{key}") for key in keys))
