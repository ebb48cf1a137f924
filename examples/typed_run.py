"""A user's file under `mypy --strict`: functions of one's own with types, a trainer, and what a run gives back."""

import ramify as rf
from ramify.branching import Candidate


def price(item: str) -> str:
    """Return what one piece costs.

    Args:
        item: The item and the shop.
    """
    return f"- {item} 17"


def right(final_answer: str, answer: list[str]) -> float:
    """Return 1 for the right answer."""
    return float(final_answer in answer)


def rule(candidate: Candidate) -> float:
    """Return the probability of a branch."""
    return 0.5 + 2.0 * candidate.entropy_delta


def train(model: str) -> rf.Run:
    """Train with the functions above, and print what came out."""
    trainer = rf.Trainer(
        model,
        train=[{"prompt": "what is the price of Varu Konu?", "answer": "17"}],
        tools=[price],
        reward=right,
        rollout=rf.Rollout(n=8, m=4, branching=rule, problems_per_step=1, max_tokens=180, max_calls=7),
        learner=rf.Learner(rate=4e-4),
    )
    run = trainer.train(steps=2)
    losses: list[float] = run.metrics.column("update/loss")
    print(losses, run.trees(1)[0].best)
    return run


def loop(model: str) -> rf.Trees:
    """Take one step by hand."""
    policy = rf.Policy(model, learner=rf.Learner(rate=4e-4))
    agent = rf.Agent(policy, tools=[price], limits=rf.Limits(max_prompt_tokens=400, max_tokens=180))
    trees = rf.score(agent.rollout(["what is the price of Varu Konu?"], n=8, m=4, branching=rule), right)
    report: rf.Report = policy.update(trees, rf.algorithms.ARPO(shared="mass"))
    print(report)
    return rf.credit(trees, "arpo")
