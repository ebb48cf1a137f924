# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Look at a tree
#
# Open the repository's folder after `make quickstart`; every cell takes a moment. `jupytext --to ipynb` makes a notebook of this file,
# and VS Code opens it as it is. `ramify view runs/quickstart/rl` shows the same in a browser.

# %%
import ramify as rf

run = rf.open_run("runs/quickstart/rl")
run

# %% [markdown]
# ## A step
#
# A row is the tree of one problem. Look for trees whose mean is neither the lowest nor the highest: where all rewards are equal,
# there is nothing to learn.

# %%
trees = run.trees(run.steps[0])
trees

# %%
tree = max(trees, key=lambda each: len({leaf.reward for leaf in each.trajectories}))
tree

# %% [markdown]
# ## A tree
#
# Each line is a node: what the model wrote, or (with `=`) what a tool returned. Its number is its path. Where a result has
# several children, the tree branched there, and all of them share the tokens above.

# %%
print("question:", tree.question)
print("expected:", *tree.problem.answer)
print("best:    ", tree.best.answer or "no answer", f"(reward {tree.best.reward:.2f})")

# %%
tree.best

# %% [markdown]
# ## Why it branched
#
# After a result the rule compares the entropy of the next tokens with that of the trajectory's first ones. Look at `entropy_delta`
# and `probability`: more uncertainty, more branches. `taken` is 0 where the draw was above the probability, or the budget was used.

# %%
for decision in tree.core.decisions[:8]:
    print(
        f"after {decision.node:8} entropy_delta {decision.entropy_delta:+.3f}  "
        f"probability {decision.probability:.2f}  draw {decision.draw:.2f}  taken {decision.taken}"
    )

# %% [markdown]
# ## Tokens
#
# Only tokens with `mask` train: those that the model wrote. A result has neither a logprob nor credit.

# %%
tree.tokens[:40]

# %% [markdown]
# ## Credit
#
# `advantage` says how much more likely a token shall become. Look at a node that several trajectories share, in the last table:
# what good and bad ones have in common gets both S+ and S-, and stays about as it is.

# %%
credited = rf.credit(trees, "arpo")[trees.index(tree)]
for leaf in credited.trajectories:
    print(f"{leaf.id:10} reward {leaf.reward:+.2f}  advantage {leaf.advantage:+.2f}  {leaf.answer}")

# %%
credited.best.tokens[:60]
