"""Rows 3, 3b, 10.rollout and 11: what the local engine costs on the tiny model, with zero-latency tools."""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.interleave import MIN_RUNS, interleave, medians
from benchmarks.harness.peers import Peer, PeerUnavailableError
from benchmarks.harness.rows import Row, not_measured
from benchmarks.harness.threads import NUM_THREADS
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.rollout.agents import Agent, FlatTurns, TimedRollout, TreeTurns
from benchmarks.rollout.texts import Texts
from benchmarks.rollout.workload import Workload, reasoning
from ramify.algos.branch_arpo import BernoulliBrancher
from ramify.algos.branch_rules import FlatBrancher
from ramify.core.tree import Source

_N = 16
_SEED = 0
_PROBE = 20
_LONGEST = 1300
_PEER = "benchmarks.rollout.trl_peer"
CONTINUOUS = {"num_blocks": 900, "page_size": 16, "max_batch_tokens": 512}
"""The fastest of the sizes tried on this workload; without sizes it takes more than twice the time."""
_MODEL = "tiny: Qwen2 shape, 4 layers x 256, vocabulary 8192, fp32, seed 0"


def engine_against_trl() -> Sequence[Row]:
    """Row 3."""
    metric = (
        "trajectories/s, scripted, zero-latency tools, 16 trajectories, 3 turns (2 calls, then the answer)"
    )
    target = "at least 4, aim 6"
    workload = reasoning(_SEED, _N, turns=3)
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(Path(folder))
        agent = _flat_agent(Path(folder), workload)
        try:
            with Peer(_PEER) as static, Peer(_PEER) as continuous:
                question = {"folder": folder, "workload": workload.as_json(), "max_completion": 1024}
                versions = static.ask({**question, "continuous": None})["versions"]
                continuous.ask({**question, "continuous": CONTINUOUS})
                trials = _trials({"static batch": static, "continuous batching": continuous})
                generation = min(trials, key=lambda name: trials[name])
                cpu: dict[str, list[float]] = {"ours": [], "peer": []}
                peer = static if generation == "static batch" else continuous

                def ours() -> float:
                    grown = agent.grow([workload.prompt])
                    _require_workload(workload, grown)
                    cpu["ours"].append(grown.cpu_seconds)
                    return _N / grown.seconds

                def theirs() -> float:
                    answer = peer.ask({})
                    if sum(answer["written"]) != sum(map(sum, workload.turns)):
                        raise ValueError("the peer did not write the workload's tokens")
                    cpu["peer"].append(float(answer["cpu_seconds"]))
                    return _N / float(answer["seconds"])

                runs = interleave({"ours": ours, "peer": theirs})
        except PeerUnavailableError as error:
            return [not_measured("3", metric, target, str(error))]
        finally:
            agent.close()
    middle = medians(runs)
    ratio = middle["ours"] / middle["peer"]
    # Beside other programs the clock says little; the processor's time says more.
    cpu_ratio = statistics.median(cpu["peer"]) / statistics.median(cpu["ours"])
    settings = _settings(
        cpu_seconds_with_warm_up=cpu,
        cpu_ratio=cpu_ratio,
        tokens={
            "prompt": workload.prompt,
            "written": sum(map(sum, workload.turns)),
            "results": sum(map(sum, workload.results)),
        },
        ours={"rollout": "grow_trees, flat", "slots": _N, "entropies": f"first {_PROBE} of a turn"},
        peer={
            "rollout": "GRPOTrainer._generate, synchronous tools",
            "generation": f"transformers, {generation} (the faster), sdpa; no gradient checkpointing",
            "seconds_of_trials": trials,
            "continuous_batching": CONTINUOUS,
        },
    )
    return [
        Row("3", metric, middle["ours"], middle["peer"], ratio, target, ratio >= 4, runs, settings, versions)
    ]


def _trials(peers: Mapping[str, Peer]) -> dict[str, float]:
    """Seconds of the best of three rollouts of each peer, in turns; the first of them warms up."""
    seconds = [{name: float(peer.ask({})["seconds"]) for name, peer in peers.items()} for _ in range(3)]
    return {name: min(turn[name] for turn in seconds) for name in peers}


def prefilled_tokens() -> Sequence[Row]:
    """Row 3b."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(Path(folder))
        agent = _tree_agent(Path(folder), n=_N, slots=3 * _N, turns=4)
        grown = agent.grow([200, 150, 300, 180, 240, 130])
        agent.close()
    needed = grown.tokens(Source.PROMPT, Source.TOOL)
    ratio = grown.counters.prefilled / needed
    return [
        Row(
            "3b",
            "tokens fed as context / unique tokens that nobody wrote (a last token, fed for its logits, is decode)",
            grown.counters.prefilled,
            needed,
            ratio,
            "at most 1.005",
            ratio <= 1.005,
            settings=_settings(
                trees=f"6 branching trees, n {_N}, m {_N // 2}, 4 turns, 3 side by side on {3 * _N} slots",
                written=grown.tokens(Source.POLICY),
            ),
        )
    ]


def marginal_trajectories() -> Sequence[Row]:
    """Row 10.rollout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_model(folder)
        small = _tree_agent(folder, n=16, slots=16, turns=3)
        large = _tree_agent(folder, n=32, slots=32, turns=3)
        alone = _tree_agent(folder, n=1, slots=16, turns=3)
        runs = interleave(
            {
                "n=32": lambda: large.grow([200]).seconds,
                "n=16": lambda: small.grow([200]).seconds,
                "16 alone": lambda: alone.grow([200] * 16).seconds,
            }
        )
        for agent in (small, large, alone):
            agent.close()
    middle = medians(runs)
    marginal, single = (middle["n=32"] - middle["n=16"]) / 16, middle["16 alone"] / 16
    return [
        Row(
            "10.rollout",
            "seconds a trajectory: trajectories 17-32 of a branching tree / trajectories that share nothing",
            marginal,
            single,
            marginal / single,
            "at most 0.80",
            marginal / single <= 0.80,
            runs,
            _settings(
                trees="m = n/2, 3 turns, prompt 200", alone="16 problems of one trajectory each, side by side"
            ),
        )
    ]


def more_turns() -> Sequence[Row]:
    """Row 11."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_model(folder)
        agents = {turns: (_flat_agent(folder, work), work) for turns, work in _by_turns().items()}
        runs = interleave({f"{turns} turns": _timed(*pair) for turns, pair in agents.items()})
        for agent, _ in agents.values():
            agent.close()
    middle = medians(runs)
    ratio = middle["12 turns"] / middle["3 turns"]
    return [
        Row(
            "11",
            "seconds of a rollout of 12 turns / of 3 turns, flat, 16 trajectories",
            middle["12 turns"],
            middle["3 turns"],
            ratio,
            "at most 4.5",
            ratio <= 4.5,
            runs,
            _settings(
                written={turns: sum(map(sum, work.turns)) for turns, (_, work) in agents.items()},
                results={turns: sum(map(sum, work.results)) for turns, (_, work) in agents.items()},
            ),
        )
    ]


def _by_turns() -> dict[int, Workload]:
    """Twelve turns are the three turns four times over, so that the work differs in length only."""
    short = reasoning(_SEED, _N, turns=4)
    three = Workload(short.prompt, [t[:3] for t in short.turns], [r[:2] for r in short.results])
    twelve = Workload(
        short.prompt, [list(t[:3]) * 4 for t in short.turns], [(list(r) * 4)[:11] for r in short.results]
    )
    return {3: three, 12: twelve}


def _timed(agent: Agent, workload: Workload) -> Callable[[], float]:
    def run() -> float:
        grown = agent.grow([workload.prompt])
        _require_workload(workload, grown)
        return grown.seconds

    return run


def _flat_agent(folder: Path, workload: Workload) -> Agent:
    turns = FlatTurns(Texts(folder), workload)
    return Agent(folder, turns, FlatBrancher(probe_tokens=_PROBE), _N, _N, workload.longest + 1)


def _tree_agent(folder: Path, n: int, slots: int, turns: int) -> Agent:
    brancher = BernoulliBrancher(m=max(1, n // 2), children=1, probe_tokens=_PROBE, alpha=0.5, beta=0.0)
    return Agent(folder, TreeTurns(Texts(folder), turns), brancher, n, slots, _LONGEST)


def _require_workload(workload: Workload, grown: TimedRollout) -> None:
    expected = (sum(map(sum, workload.turns)), sum(map(sum, workload.results)))
    if (grown.tokens(Source.POLICY), grown.tokens(Source.TOOL)) != expected:
        raise ValueError("the rollout does not have the workload's tokens")


def _settings(**more: object) -> Mapping[str, Any]:
    return {"model": _MODEL, "workload_seed": _SEED, "threads": NUM_THREADS, "runs": MIN_RUNS, **more}


ROWS = {
    "3": engine_against_trl,
    "3b": prefilled_tokens,
    "10.rollout": marginal_trajectories,
    "11": more_turns,
}
