#!/usr/bin/env bash
# Runs a world of the study (docs/study.md) as far as it is not done, and copies its lines to docs/study/WORLD.jsonl.
# Stop it at any time; the same command goes on, also in a fresh clone with the lines that were committed.
set -eu
usage="usage: scripts/study.sh contrast|ambiguous|certain|smollm2 SEEDS [more options of ramify ablate]"
[ $# -ge 2 ] || { echo "$usage" >&2 && exit 2; }
cd "$(dirname "$0")/.."
command -v ramify >/dev/null || { echo "ramify is not on the PATH. After make setup: . .venv/bin/activate" >&2 && exit 2; }
world=$1 seeds=$2
shift 2
export OMP_NUM_THREADS=1
starts=runs/study_$world out=runs/ablate_$world lines=docs/study/$world.jsonl
recipe=recipes/study_$world.toml files=world
rules() { # of each branch so many children, as in the world's recipe
    options=(-s eval.every=5 -s eval.attempts=2
        --arm "aepo={name=\"balanced\",gamma=2.0,budget_beta=5.01,tau=0.7,probe_tokens=6,children=$1}"
        --arm "quantile={name=\"quantile\",rate=0.3,probe_tokens=6,children=$1}")
}
case $world in
contrast) make="--difficulty 3" && rules 1 ;;
ambiguous)
    make="--ambiguous 0.8" && rules 2
    options+=(--arm 'oracle={name="oracle",probe_tokens=6,children=2}')
    ;;
certain) make="--ambiguous 0" && rules 2 ;;
smollm2)
    make=--lm recipe=recipes/smollm2_rl.toml files=data
    options=(-s eval.every=3 -s run.save_every=3 -s run.deterministic=true
        -s 'rollout.branching={name="quantile",rate=0.3,probe_tokens=20,children=1}')
    ;;
*) echo "expected contrast, ambiguous, certain or smollm2, got $world" >&2 && exit 2 ;;
esac

start() {
    [ -n "$(ls -d "$starts/$1"/sft/checkpoints/step-* 2>/dev/null)" ] && return
    rm -rf "${starts:?}/$1" # of a start that was stopped
    # shellcheck disable=SC2086 # two words
    ramify quickstart --only sft $make --seed "$1" --out "$starts/$1" --quiet
}
mkdir -p "$out" docs/study
[ -f "$out/results.jsonl" ] || [ ! -f "$lines" ] || cp "$lines" "$out/results.jsonl"
trap '[ ! -f "$out/results.jsonl" ] || cp "$out/results.jsonl" "$lines"' EXIT

# Means are read from the lines, when the number of pairs is fixed.
compare() {
    ramify ablate "$recipe" --seeds "$seeds" --out "$out" --blind "${options[@]}" \
        -s "model.path=$starts/{seed}/sft" -s "data.train=$starts/{seed}/$files/train.jsonl" \
        -s "tools.search.corpus=$starts/{seed}/$files/passages.jsonl" -s "eval.test=$starts/{seed}/$files/test.jsonl" "$@"
}

case " $* " in *" --dry-run "*)
    compare "$@"
    exit
    ;;
esac # no cold starts
# A seed whose runs all have lines needs no cold start, and on another type of processor would not get the same one.
plan=$(compare "$@" --dry-run --json)
left=$(python -c '
import json, sys
runs = json.load(sys.stdin)["runs"]
print(*sorted({int(run["name"].rpartition("-")[2]) for run in runs if not run["finished"]}))' <<<"$plan")
read -r -a left <<<"$left"
for ((i = 0; i < ${#left[@]}; i += 2)); do
    start "${left[i]}" &
    [ $((i + 1)) -ge ${#left[@]} ] || start "${left[i + 1]}"
    wait $!
done
compare "$@"
