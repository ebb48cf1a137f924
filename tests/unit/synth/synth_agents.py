"""An agent that answers questions by a script, for tests of synthesis."""

from dataclasses import replace

from ramify.algos.branch_rules import FlatBrancher
from ramify.core.messages import Message, Problem
from ramify.engines.scripted import ScriptedTurn
from ramify.engines.virtual_clock import run_virtual
from ramify.obs.metrics import TimingLog
from ramify.rewards.configs import AnswerRewardConfig
from ramify.rewards.trajectory_rewards import AnswerReward
from ramify.sampler.sampler import Sampler, Scoring
from ramify.sampler.task import Task
from repair_agents import SeesAll
from scripted_agents import ANSWER, agent

FLAT = FlatBrancher(probe_tokens=0)
RIGHT = ANSWER
WRONG = "<answer> \\boxed{ 41 } </answer>"


def question(name, gold="42"):
    return Problem(name, (Message.of("user", f"{name} ?"),), (gold,), {"kind": name})


def sampler_of(folder, play, n=4, **options):
    """A sampler whose turns are `play(context, seed)`; it scores answers."""

    def turn(context, seed):
        text = play(context, seed)
        return ScriptedTurn(text, ends="</answer>" in text)

    parts = agent(folder, FLAT, turn, n=n, **options)
    parts = replace(parts, engine=SeesAll(parts.engine.inner), events=TimingLog())
    task = Task((), None, parts.renderer, 0, None)
    return Sampler(task, parts, parts.events, Scoring(AnswerReward(AnswerRewardConfig()), parts.events))


def grow(sampler, planned):
    """Grown and scored trees."""

    async def main():
        async def keep(scored, seconds):
            del seconds
            return scored

        return await sampler.grow_each(tuple(planned), keep, lambda waits: None)

    grown, _ = run_virtual(main())
    return grown
