"""Writes base/: a tokenizer, and a model of two layers that has learned nothing yet."""

from pathlib import Path

from ramify.quickstart.world import write_base

if __name__ == "__main__":
    write_base(Path(__file__).with_name("base"), seed=0)
    print("base: half a million untrained parameters")
