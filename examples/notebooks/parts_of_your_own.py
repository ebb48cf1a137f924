# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Tool, reward, rule, credit and loss of your own
#
# Five functions, and the loop of training around them. Open the repository's folder after `make quickstart`; everything here
# takes seconds.

# %%
import ramify as rf

# %% [markdown]
# ## A tool
#
# A function with type hints and a docstring. This model has learned to write `<search>`, so the tool has this name.

# %%
FACTS = {
    "Rola": {"area": 31, "age": 57},
    "Gure": {"area": 18, "age": 44},
    "Zove": {"area": 52, "age": 29},
}


# %%
@rf.tool
def search(query: str) -> str:
    """Looks things up.

    Args:
        query: A name and what is wanted of it.
    """
    lines = [
        f"- {name} {fact} {value}"
        for name, facts in FACTS.items()
        if name in query.split()
        for fact, value in facts.items()
    ]
    return "\n".join(lines) or "No search results found."


search("Rola area")

# %% [markdown]
# ## A reward
#
# A number for each answer. Beside it stands a part that pays for being brief.


# %%
@rf.reward
def right(final_answer, answer):
    return float(final_answer in answer)


@rf.reward
def brief(completions):
    return [1 - min(len(text), 400) / 400 for text in completions]


# %% [markdown]
# ## A rule
#
# The probability of a branch after a result. This one branches early: often after the first result, seldom after the third.


# %%
@rf.branching_rule
def early(candidate):
    return 0.8 / candidate.depth


# %% [markdown]
# ## Grow and score
#
# Six questions of our own; eight attempts at each, of which four branch off. A real language model is told of the tools in its
# prompt; this one knows nothing of descriptions, so `in_prompt` is off.

# %%
rows = [
    {"prompt": f"what is the {fact} of {name}?", "answer": value}
    for name, facts in FACTS.items()
    for fact, value in facts.items()
]
policy = rf.Policy("runs/quickstart/sft", learner=rf.Learner(rate=4e-4), threads=1)
limits = rf.Limits(max_prompt_tokens=60, max_tokens=120, max_calls=4)
agent = rf.Agent(policy, tools=rf.tools.Function(search, in_prompt=False), limits=limits)

# %%
trees = rf.score(agent.rollout(rows, n=8, m=4, branching=early), [right, (brief, 0.2)])
trees

# %%
trees[0]

# %% [markdown]
# ## Credit
#
# One advantage for each trajectory: here its reward against the mean of the others. Look at the sum: it is 0 in each tree.


# %%
@rf.advantage
def leave_one_out(rewards, tree):
    return rewards - (rewards.sum() - rewards) / (len(rewards) - 1)


tree = max(trees, key=lambda each: len({leaf.reward for leaf in each.trajectories}))
for name, algorithm in (("ARPO", "arpo"), ("mine", rf.algorithms.ARPO(estimator=leave_one_out))):
    leaves = rf.credit(tree, algorithm)[0].trajectories
    print(f"{name:5}", *(f"{leaf.advantage:+.2f}" for leaf in leaves))

# %% [markdown]
# ## A loss
#
# `f(ratio, sign)` of a token: ratio of new to old probability, and the sign of the advantage. CISPO clips the ratio, not the
# gradient.


# %%
@rf.token_loss
def cispo(ratio, sign, high=0.28):
    return ratio.clamp(max=1 + high).detach() * ratio.log()


# %% [markdown]
# ## The loop
#
# Look at the mean reward. Three updates of six problems teach little; the quick start takes
# fifty of fifteen.

# %%
algorithm = rf.algorithms.ARPO(estimator=leave_one_out, loss=cispo)
for _ in range(3):
    trees = rf.score(agent.rollout(rows, n=8, m=4, branching=early), [right, (brief, 0.2)])
    print(trees, policy.update(trees, algorithm))

# %%
agent.close()
