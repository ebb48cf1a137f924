import type { Node, Run, Trajectory, Tree } from "../src/types";

export function node(id: string, fields: Partial<Node> = {}): Node {
  const parts = id === "" ? [] : id.split(".");
  return {
    id,
    parent: id === "" ? null : parts.slice(0, -1).join("."),
    source: id === "" ? "prompt" : parts.length % 2 === 1 ? "policy" : "tool",
    text: `text of ${id}`,
    ids: [1, 2, 3],
    tokens: ["a", " b", "\n"],
    logprobs: id !== "" && parts.length % 2 === 1 ? [-1, -2, -3] : [],
    old_logprobs: [],
    entropies: [],
    entropy: null,
    turn: null,
    results: [],
    messages: [],
    reward: 0,
    version: 0,
    stop: null,
    context: "parent",
    rewriter: "",
    mass: 1,
    time: null,
    calls_time: [],
    ...fields,
  };
}

export function trajectory(leaf: string, reward: number, fields: Partial<Trajectory> = {}): Trajectory {
  return {
    leaf,
    reward,
    parts: {},
    events: {},
    counts: true,
    stop: "answered",
    answer: leaf,
    right: reward > 0,
    why: [],
    advantage: null,
    loss: true,
    tokens: { prompt: 1, written: 1, results: 1, sent: 1 },
    cost: null,
    seconds: null,
    ...fields,
  };
}

/** A turn whose result branches into a right and a wrong answer, and a second root that is wrong. */
export function forked(): Tree {
  return {
    source: "trees/000001",
    row: 0,
    problem: { id: "p", messages: [{ role: "user", text: "?" }], answer: ["1"], info: {} },
    key: { step: 1, slot: 0, attempt: 0 },
    nodes: [
      node(""),
      node("0", { entropy: { lower: 0.1, upper: 0.3, count: 3 } }),
      node("0.0"),
      node("0.0.0", { ids: [7, 8], tokens: ["x", "y"] }),
      node("0.0.1", { ids: [7, 9], tokens: ["x", "z"], entropy: { lower: 0.5, upper: 0.5, count: 2 } }),
      node("1", { ids: [4], tokens: ["q"] }),
    ],
    decisions: [],
    trajectories: [trajectory("0.0.0", 1), trajectory("0.0.1", 0), trajectory("1", 0, { counts: false })],
    credit: null,
    commands: [],
  };
}

export function run(names: string[]): Run {
  return {
    schema: 1,
    kind: "train",
    name: "r",
    title: "r",
    about: [],
    live: false,
    sources: names.map((_, at) => ({ id: `s${at}`, run: at, step: 5, trees: 1 })),
    runs: names.map((name) => ({ name, dir: `/${name}` })),
    series: {},
    algorithms: [],
    columns: [
      "row",
      "problem",
      "question",
      "answer",
      "mean",
      "right",
      "n",
      "flags",
      "step",
      "seconds",
      "kind",
    ],
  };
}
