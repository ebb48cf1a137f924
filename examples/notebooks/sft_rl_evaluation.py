# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # SFT, RL and evaluation on a CPU
#
# From an untrained model to an agent, in about five minutes on one core. Open the repository's folder after `make quickstart`, which
# has left the untrained model (`base`) and the data (`world`). The recipes are those of the quick start.

# %%
import ramify as rf

WORLD = "runs/quickstart/world"
OUT = "runs/notebook"  # a run never writes over another: delete this folder before you begin again

# %% [markdown]
# ## SFT
#
# The model imitates demonstrations, about half of which are right. Look at the loss.

# %%
sft = rf.SFT.from_recipe(
    "quickstart_sft",
    run={"dir": f"{OUT}/sft"},
    learner=rf.Learner(warmup_steps=10),
).train()
sft.metrics.column("loss")[::10]

# %% [markdown]
# ## Evaluate
#
# The agent gets the search tool and Python. Look at `right` and `stop`.

# %%
search = rf.tools.LocalSearch(corpus=f"{WORLD}/passages.jsonl", top_k=2, snippet_chars=200, page_labels=False)
tools = [search, rf.tools.Python(timeout_seconds=5), rf.Sandbox(min_level=0)]
limits = rf.Limits(max_prompt_tokens=60, max_tokens=180, max_calls=7)
problems = rf.problems(f"{WORLD}/test.jsonl", limit=200)
before = rf.evaluate(sft.checkpoint, problems, tools=tools, limits=limits)
before

# %% [markdown]
# ## RL
#
# Trees of 16 attempts at each problem. Look at `reward/mean`, which rises. `preflight` would refuse a model that never succeeds,
# such as the one of a smoke quick start.

# %%
run = rf.Trainer.from_recipe(
    "quickstart_rl",
    model={"path": str(sft.checkpoint)},
    run={"dir": f"{OUT}/rl"},
    preflight={"enabled": False},
    learner=rf.Learner(warmup_steps=2),
).train()
run

# %% [markdown]
# ## Evaluate again, and compare
#
# The same problems: the difference has a smaller interval than each of the two scores.

# %%
after = rf.evaluate(run.best, problems, tools=tools, limits=limits)
print(before)
print(after)
rf.compare(before, after)

# %% [markdown]
# Read an attempt. `ramify view runs/notebook/rl` shows all trees of the training.

# %%
after.trees[0]
