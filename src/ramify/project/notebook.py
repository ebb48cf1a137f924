# %% [markdown]
# # A price list, from Python
#
# The way of README.md, cell by cell. Each cell that trains shows the time left. With `resume=True` it goes on where it was stopped,
# and returns at once where it was finished: to train again after a change, delete its folder in `runs/`.

# %%
import runpy
import sys

from shop import price, well_asked

import ramify as rf

# %% [markdown]
# ## Data, and a model that has learned nothing
#
# Look at what is printed: is the prompt what you would ask, and the answer right?

# %%
for script in ("make_model.py", "make_problems.py", "make_demonstrations.py"):
    sys.modules.pop("make_problems", None)  # make_demonstrations.py imports it: as it is now
    runpy.run_path(script, run_name="__main__")

# %% [markdown]
# ## A cold start
#
# The model imitates demonstrations, most of which contain a mistake. Look at the loss: it falls fast, then slowly.

# %%
sft = rf.SFT.from_recipe("sft.toml").train(resume=True)
[round(loss, 2) for loss in sft.metrics.column("loss")[::100]]

# %% [markdown]
# ## Evaluate before
#
# `pass@1` is above 0: RL makes frequent what happens now and then, so it must happen.

# %%
tools = [
    rf.tools.Function(price, in_prompt=False),
    rf.tools.Python(timeout_seconds=5),
    rf.Sandbox(min_level=0),
]
limits = rf.Limits(max_prompt_tokens=60, max_tokens=180, max_calls=7)
reward = ["answer", (well_asked, 0.2)]
before = rf.evaluate("runs/sft", "test.jsonl", reward=reward, tools=tools, limits=limits)
before

# %% [markdown]
# Read what the agent wrote: nothing else shows as fast what is wrong.

# %%
before.trees[1]

# %% [markdown]
# ## Train
#
# Look at the line `preflight`: rewards must differ within groups, and most attempts call a tool. Then the mean reward rises; the
# most is 1.2.

# %%
run = rf.Trainer.from_recipe("rl.toml").train(resume=True)
run

# %% [markdown]
# A tree of the last step. Lines with `=` are results; where a node has two children, the tree branched.

# %%
run.trees(run.steps[-1])[0]

# %% [markdown]
# ## Evaluate after, and compare

# %%
after = rf.evaluate("runs/rl", "test.jsonl", reward=reward, tools=tools, limits=limits)
print(before)
print(after)
rf.compare(before, after)
