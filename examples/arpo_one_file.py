r"""ARPO in one file, for reading: branch the rollout where a tool result makes the model uncertain (arXiv 2507.19849).

    ramify quickstart                              # makes a small world and a model that can use its two tools
    python examples/arpo_one_file.py runs/quickstart

From top to bottom: what a trajectory is, two tools, sampling, the branching rollout, reward, advantage, loss, and the loop. It needs torch and
transformers only, no ramify; its gradients are those of ramify's learner (tests/reference/test_one_file.py). What it leaves out
is what ramify is for: shared prefixes computed once, real sandboxes, checkpoints and resuming, engines, GPUs, many processes, and traces.
"""

import argparse
import ast
import json
import math
import operator
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

# The paper's names: n trajectories of a problem (its M), of which m start from the prompt (its N); alpha, beta: the chance to branch.
PROBLEMS, N, M = 15, 16, 8
ALPHA, BETA, PROBE = 0.5, 2.0, 6
MAX_TOKENS, MAX_CALLS = 180, 7
CLIP, BONUS = 0.2, 0.1
RATE, WARMUP = 4e-4, 5
MICRO_BATCH = 48


# ---------------------------------------------------------------------------------------------------------- trajectories


@dataclass
class Trajectory:
    """One attempt at a problem: the prompt, then turns of the policy and tool results, all in one sequence of tokens.

    `sampled` is the loss mask: True for tokens that the policy wrote. `logprobs` are those that it had when it wrote them.
    """

    problem: dict
    ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    text: str = ""  # of the response, for rewards
    tools_used: set[str] = field(default_factory=set)
    calls: int = 0
    baseline: float | None = None  # entropy of the root's first tokens, which later ones are compared with
    follows_result: bool = False
    done: bool = False

    @classmethod
    def root(cls, problem: dict, tokenizer: PreTrainedTokenizerBase) -> "Trajectory":
        """Start from the prompt."""
        ids = tokenizer.apply_chat_template(problem["prompt"], add_generation_prompt=True, return_dict=False)
        return cls(problem, ids, [False] * len(ids), [0.0] * len(ids))

    def branch(self) -> "Trajectory":
        """Return a sibling that shares everything so far, and goes on by itself."""
        copies = {name: list(getattr(self, name)) for name in ("ids", "sampled", "logprobs")}
        state = {**vars(self), **copies, "tools_used": set(self.tools_used)}
        return Trajectory(**state)

    def append(self, ids: list[int], text: str, logprobs: list[float] | None = None) -> None:
        """Add what the policy wrote, with its logprobs, or a tool result, without."""
        self.ids += ids
        self.sampled += [logprobs is not None] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)
        self.text += text

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        prompt = self.sampled.index(True) if True in self.sampled else len(self.ids)
        return MAX_TOKENS - (len(self.ids) - prompt)


# ----------------------------------------------------------------------------------------------------------------- tools


class Search:
    """BM25 over the passages of a problem's own collection; the two best, as lines."""

    def __init__(self, passages: list[dict]) -> None:
        self.collections: dict[str, list[tuple[str, Counter]]] = {}
        for passage in passages:
            words = Counter(re.findall(r"\w+", passage["text"].lower()))
            self.collections.setdefault(passage["collection"], []).append((passage["text"], words))
        self.documents = [words for rows in self.collections.values() for _, words in rows]
        self.frequency = Counter(word for words in self.documents for word in words)
        self.length = sum(map(Counter.total, self.documents)) / len(self.documents)

    def __call__(self, query: str, problem: dict) -> str:
        """Return the passages that share a word with the query, best first."""
        rows = self.collections.get(problem["collection"], [])
        wanted = dict.fromkeys(re.findall(r"\w+", query.lower()))
        scored = [(sum(self._weight(word, words) for word in wanted), text) for text, words in rows]
        best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])[:2]
        return "\n".join(text for _, text in best)

    def _weight(self, word: str, words: Counter) -> float:
        inverse = math.log(
            1 + (len(self.documents) - self.frequency[word] + 0.5) / (self.frequency[word] + 0.5)
        )
        times = words[word]
        return inverse * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * words.total() / self.length))


def run_python(program: str, problem: dict) -> str:  # noqa: ARG001 - tools have one signature
    """Run lines of `print` with sums and comparisons: nothing else, because a model's program must not run outside of a sandbox."""
    operators = {
        **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
        **{ast.Gt: operator.gt, ast.Lt: operator.lt},
    }

    def value(node: ast.expr) -> object:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return operator.neg(value(operand))
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in operators:
                return operators[type(op)](value(left), value(right))
        raise ValueError("only sums and comparisons are run here")

    lines = [line.value for line in ast.parse(program).body]
    return "\n".join(" ".join(str(value(argument)) for argument in line.args) for line in lines)


CALL = re.compile(r"<(search|python)>([^<]*)</\1>\s*$")
STOPS = ("</search>", "</python>", "</answer>", "<result>")


# -------------------------------------------------------------------------------------------------------------- sampling


@dataclass
class Turn:
    """What the policy wrote until it called a tool or answered."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    text: str = ""


@torch.no_grad()
def write_turns(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, contexts: list[list[int]], limits: list[int]
) -> list[Turn]:
    """Sample a turn for each context, all in one batch with a cache, at temperature 1."""
    longest = max(map(len, contexts))
    ids = torch.tensor([[0] * (longest - len(context)) + context for context in contexts])
    mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    turns, open_turns, cache = [Turn() for _ in contexts], set(range(len(contexts))), None
    while open_turns:
        output = model(
            ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        logprobs = output.logits[:, -1].float().log_softmax(-1)
        tokens = torch.multinomial(logprobs.exp(), 1)
        entropies = (-logprobs.exp() * logprobs).sum(-1).tolist()
        chosen = logprobs.gather(1, tokens)[:, 0].tolist()
        for index in tuple(open_turns):
            turn, token = turns[index], int(tokens[index])
            turn.ids.append(token)
            turn.logprobs.append(chosen[index])
            turn.entropies.append(entropies[index])
            turn.text += tokenizer.decode([token])
            ended = token == tokenizer.eos_token_id or turn.text.endswith(STOPS)
            if ended or len(turn.ids) == limits[index]:
                open_turns.discard(index)
        ids, positions = tokens, positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(contexts), 1)], dim=1)
    return turns


# --------------------------------------------------------------------------------------------------------------- rollout


def rollout(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tools: dict,
    problems: list[dict],
    n: int,
    m: int,
) -> list[list[Trajectory]]:
    """Return n trajectories of each problem: m from its prompt, the others branched where a tool result raised the entropy.

    Section 3.1 of the paper. After a result the entropy of the first tokens is compared with that of the trajectory's beginning; a rise makes
    a branch more likely. The sibling starts behind the result and draws its own tokens; the trajectory itself goes on with those it has.
    Budget that no branch used is spent on further trajectories from the prompt.
    """
    groups = [[Trajectory.root(problem, tokenizer) for _ in range(m)] for problem in problems]
    while active := [(t, group) for group in groups for t in group if not t.done]:
        turns = write_turns(model, tokenizer, [t.ids for t, _ in active], [t.room for t, _ in active])
        for (trajectory, group), turn in zip(active, turns, strict=True):
            first = turn.entropies[:PROBE]
            entropy = sum(first) / len(first)
            if trajectory.baseline is None:
                trajectory.baseline = entropy
            elif trajectory.follows_result and len(group) < n:
                chance = ALPHA + BETA * (entropy - trajectory.baseline)
                if random.random() < chance:
                    group.append(trajectory.branch())
            trajectory.append(turn.ids, turn.text, turn.logprobs)
            act(trajectory, tools, tokenizer)
        for problem, group in zip(problems, groups, strict=True):
            if all(t.done for t in group):
                group += [Trajectory.root(problem, tokenizer) for _ in range(n - len(group))]
    return groups


def act(trajectory: Trajectory, tools: dict, tokenizer: PreTrainedTokenizerBase) -> None:
    """Answer the call that ends the trajectory's last turn, or end the trajectory."""
    call = CALL.search(trajectory.text)
    if call is None or trajectory.calls == MAX_CALLS:
        trajectory.done = True
        return
    try:
        result = tools[call[1]](call[2].strip(), trajectory.problem)
    except (SyntaxError, ValueError, AttributeError, TypeError) as error:
        result, failed = f"{type(error).__name__}: {error}", True
    else:
        failed = not result
    text = f" <result>\n{result or 'No search results found.'}\n</result>"
    trajectory.append(tokenizer.encode(text, add_special_tokens=False), text)
    trajectory.calls += 1
    trajectory.follows_result = True
    if not failed:
        trajectory.tools_used.add(call[1])
    trajectory.done = trajectory.room <= 0


# ---------------------------------------------------------------------------------------------------- reward and learning


def reward(trajectory: Trajectory) -> float:
    """Return -1 without a well formed answer, 0 for a wrong one, 1 for a right one, and a bonus if both tools helped (section 3.3)."""
    spoken = re.sub(r"<result>.*?</result>", "", trajectory.text, flags=re.DOTALL)
    answer = re.search(r"<answer>.*\\boxed\{(.*?)\}.*</answer>", spoken, re.DOTALL)
    if answer is None:
        return -1.0
    if answer[1].strip().lower() not in (gold.lower() for gold in trajectory.problem["answer"]):
        return 0.0
    return 1.0 + BONUS * (trajectory.tools_used == {"search", "python"})


def advantages(rewards: list[float]) -> list[float]:
    """Return (R - mean) / std over the trajectories of one problem, branched or not: the paper's soft estimate (section 3.2)."""
    group = torch.tensor(rewards, dtype=torch.float64)
    return ((group - group.mean()) / (group.std() + 1e-6)).tolist()


def token_logprobs(model: PreTrainedModel, batch: list[Trajectory]) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each next token of a batch its logprob, that of the sampler, and whether the policy wrote it. [B, T - 1]"""
    longest = max(len(t.ids) for t in batch)

    def padded(rows: list[list]) -> Tensor:
        return torch.tensor([row + [type(row[0])()] * (longest - len(row)) for row in rows])

    ids, sampled = padded([t.ids for t in batch]), padded([t.sampled for t in batch])
    real = torch.arange(longest) < torch.tensor([[len(t.ids)] for t in batch])
    logits = model(ids, attention_mask=real.long()).logits[:, :-1].float()
    chosen = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
    return chosen, padded([t.logprobs for t in batch])[:, 1:], sampled[:, 1:]


def policy_loss(model: PreTrainedModel, batch: list[Trajectory], values: list[float], count: int) -> Tensor:
    """Return the clipped surrogate, summed over the batch's sampled tokens and divided by `count`, those of the whole step.

    Each trajectory of a tree counts its own copy of a shared prefix, so a token that d of them share gets the sum of d advantages.
    """
    new, old, sampled = token_logprobs(model, batch)
    ratio = (new - old).exp()
    value = torch.tensor(values, dtype=torch.float32)[:, None]
    surrogate = torch.minimum(ratio * value, ratio.clamp(1 - CLIP, 1 + CLIP) * value)
    return -(surrogate * sampled).sum() / count


def update(model: PreTrainedModel, optimizer: torch.optim.Optimizer, groups: list[list[Trajectory]]) -> float:
    """Take one step on the trajectories of a rollout; returns the norm of the gradient."""
    pairs = [
        pair for group in groups for pair in zip(group, advantages([reward(t) for t in group]), strict=True)
    ]
    pairs.sort(key=lambda pair: len(pair[0].ids))  # alike lengths side by side: less padding
    count = sum(sum(t.sampled) for t, _ in pairs)
    optimizer.zero_grad()
    for start in range(0, len(pairs), MICRO_BATCH):
        batch, values = zip(*pairs[start : start + MICRO_BATCH], strict=True)
        policy_loss(model, list(batch), list(values), count).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(norm)


# ------------------------------------------------------------------------------------------------------------------ loop


def read_lines(path: Path) -> list[dict]:
    """Read a JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def share_right(groups: list[list[Trajectory]]) -> float:
    """Return the share of trajectories with the right answer."""
    rewards = [reward(t) for group in groups for t in group]
    return sum(value >= 1 for value in rewards) / len(rewards)


def main() -> None:
    """Train the model of the quick start's cold start, and say what it got right before and after."""
    parser = argparse.ArgumentParser(description="ARPO in one file, on the world of the quick start.")
    parser.add_argument("run", type=Path, help="the folder of `ramify quickstart`")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    random.seed(options.seed)

    folder = max((options.run / "sft" / "checkpoints").iterdir())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    world = options.run / "world"
    tools = {"search": Search(read_lines(world / "passages.jsonl")), "python": run_python}
    train, dev = read_lines(world / "train.jsonl"), read_lines(world / "dev.jsonl")[:100]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, 1.0) * (1.0 - 0.9 * step / options.steps)
    )

    print(
        f"before: {share_right(rollout(model, tokenizer, tools, dev, 1, 1)):.3f} of {len(dev)} held-out problems"
    )
    random.shuffle(train)
    for step in range(options.steps):
        problems = [train[(step * PROBLEMS + i) % len(train)] for i in range(PROBLEMS)]
        groups = rollout(model, tokenizer, tools, problems, N, M)
        norm = update(model, optimizer, groups)
        schedule.step()
        print(f"step {step + 1}: right {share_right(groups):.3f}, gradient {norm:.2f}")
    print(f"after: {share_right(rollout(model, tokenizer, tools, dev, 1, 1)):.3f}")


if __name__ == "__main__":
    main()
