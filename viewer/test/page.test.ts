import assert from "node:assert/strict";
import { test } from "node:test";
import { filled } from "../src/commands";
import { failuresIn } from "../src/failing";
import { growForest } from "../src/forest";
import { flipped } from "../src/history";
import { difference, measuresOf, range, strength } from "../src/measures";
import { readTurn } from "../src/node_text";
import { changesOf } from "../src/problems";
import { formatRoute, HOME, parseRoute } from "../src/route";
import { countFlags, filterRows, NO_FILTER, readRows, runName, sortRows } from "../src/rows";
import { firstMatch } from "../src/static_source";
import { isSpecial, seconds, short, shellWord } from "../src/words";
import { forked, node, run } from "./trees";

const values = (row: number, problem: string, mean: number, flags: string[]): unknown[] => [
  row,
  problem,
  `question ${problem}`,
  ["Paris"],
  mean,
  mean > 0 ? 1 : 0,
  1,
  flags,
  null,
  null,
  "hop",
];
const two = run(["eval/a", "eval/b"]);
const rows = [
  ...readRows(two, {
    source: "s0",
    rows: [values(0, "p", 1, ["right"]), values(1, "q", 0, ["wrong", "malformed"])],
  }),
  ...readRows(two, { source: "s1", rows: [values(0, "p", -1, ["wrong"])] }),
];

test("rows have the step and the run of their source, and pass every chosen flag and text", () => {
  assert.deepEqual(
    rows.map((row) => [row.source, row.step, row.run]),
    [
      ["s0", 5, 0],
      ["s0", 5, 0],
      ["s1", 5, 1],
    ],
  );
  const passing = (filter: object, hits: string[] | null = null): number =>
    filterRows(rows, { ...NO_FILTER, ...filter }, hits === null ? null : new Set(hits)).length;
  assert.equal(passing({ flags: ["wrong"] }), 2);
  assert.equal(passing({ flags: ["wrong", "malformed"] }), 1);
  assert.equal(passing({ text: "QUESTION q" }), 1);
  assert.equal(passing({ text: "in a call" }, ["s1 0"]), 1);
  assert.equal(passing({ text: "paris", run: 1 }), 1);
  assert.deepEqual(
    sortRows(rows, { key: "mean", down: true }).map((row) => row.mean),
    [1, 0, -1],
  );
  assert.deepEqual(countFlags(rows), { right: 1, wrong: 2, malformed: 1 });
  assert.equal(runName(two, 1), "b");
});

test("a problem's change goes from the first run to the last, the worst first, and a flip crosses the half", () => {
  const [change] = changesOf(rows);
  assert.deepEqual([change?.by, change?.flip, change?.count], [-2, "flipped to wrong", 2]);
  // Of several attempts the means are compared, and a problem of one run is not shown under the names of two.
  const attempts = [
    ...readRows(two, {
      source: "s0",
      rows: [values(0, "p", 1, []), values(1, "p", 0, []), values(2, "q", 1, []), values(3, "q", 0, [])],
    }),
    ...readRows(two, { source: "s1", rows: [values(0, "p", 1, []), values(1, "p", 1, [])] }),
  ];
  const compared = changesOf(attempts, true);
  assert.deepEqual(
    compared.map((each) => [each.last.problem, each.by, each.count, each.first.n, each.last.right]),
    [["p", 0.5, 4, 2, 2]],
  );
  assert.deepEqual(changesOf(attempts.filter((row) => row.run === 0)), []);
  assert.equal(flipped({ right: 1, n: 4 }, { right: 3, n: 4 }), "flipped to right");
  assert.equal(flipped({ right: 3, n: 4 }, { right: 2, n: 4 }), "");
});

test("an address opens the node that it was copied from, whatever the id holds", () => {
  for (const id of ["0.0.1", "", "a/b", "x&y=#%z", "<b>é"]) {
    const route = {
      ...HOME,
      view: "tree" as const,
      step: 12,
      row: 3,
      node: id,
      panel: "tokens",
      source: "trees/1",
    };
    assert.deepEqual(parseRoute(formatRoute(route)), route, id);
  }
  assert.equal(parseRoute("#step=12&tree=0/0.0.1").node, "0.0.1");
  assert.equal(parseRoute("#tree=%E0%A4%A").view, "tree");
  assert.equal(parseRoute("#view=__proto__").view, "trees");
});

test("ids in a command are words of a shell", () => {
  assert.equal(
    filled("x {node} {leaf} {other} {z}", { node: "0.1", leaf: "", other: "a'; rm -rf /" }),
    "x 0.1 '' 'a'\\''; rm -rf /' {z}",
  );
  assert.equal(filled("x {node}", { node: "a\nrm" }), null);
  assert.equal(filled("x {node}", { node: "$& {leaf}", leaf: "y" }), "x '$& {leaf}'");
  assert.equal(filled("x:1/{node} --leaf {leaf}", { node: "", leaf: "" }), "x:1/ --leaf ''");
  assert.equal(shellWord("\u2028"), null);
});

test("a turn's thoughts, its calls and the rest", () => {
  const call = { id: "0", name: "search", arguments: {}, malformed: null };
  const calls = { kind: "calls" as const, calls: [call], answer: null, text: null, reason: null };
  const text = "<think> why </think>so<search>x</search>";
  assert.deepEqual(readTurn(node("0", { text, turn: calls })), { thoughts: ["why"], rest: "so" });
  assert.deepEqual(readTurn(node("0", { text: "open</think>rest" })), { thoughts: ["open"], rest: "rest" });
  assert.deepEqual(readTurn(node("0", { text: "<think>cut" })), { thoughts: ["cut"], rest: "" });
  const many = "<search>".repeat(20_000);
  assert.equal(readTurn(node("0", { text: many, turn: calls })).rest, "");
});

test("measures of tokens: only those that the trace holds, and what another algorithm changes", () => {
  const forest = growForest(forked());
  const credit = { advantage: [1, 1], s_plus: [1, 2], s_minus: [0, 0], weight: [1, 1] };
  const other = { advantage: [3, 1], s_plus: [0, 2], s_minus: [0, -1], weight: [1, 1] };
  assert.deepEqual(
    measuresOf(forest, "0.0.0", null).map(({ key }) => key),
    ["logprob", "mask"],
  );
  const change = difference({ "0.0.0": credit }, { "0.0.0": other });
  assert.deepEqual(change["0.0.0"], { advantage: [2, 0], s_plus: [-1, 0], s_minus: [0, -1], weight: [0, 0] });
  const measures = measuresOf(forest, "0.0.0", change);
  const plus = measures.find(({ key }) => key === "s_plus");
  assert.ok(plus !== undefined);
  assert.deepEqual(range(forest, "0.0.0", plus), [-1, 0]);
  assert.equal(strength(-1, [-1, 0], plus), -1);
  const mismatched = node("0.0.0", { logprobs: [-1, -2], old_logprobs: [-0.5, -2], ids: [7, 8] });
  const learner = growForest({ ...forked(), nodes: [node(""), mismatched] });
  const mismatch = measuresOf(learner, "0.0.0", null).find(({ key }) => key === "mismatch");
  assert.deepEqual(mismatch?.values(mismatched), [0.5, 0]);
  const logprob = measures[0];
  assert.ok(logprob !== undefined);
  assert.equal(strength(-3, [-3, -1], logprob), 1);
});

test("failures with the text that the policy read", () => {
  const tree = forked();
  const result = { status: "error", text: "no such city", info: {}, reward: 0 };
  const malformed = { kind: "malformed" as const, calls: [], answer: null, text: null, reason: "no end" };
  tree.nodes = tree.nodes.map((each) =>
    each.id === "0.0"
      ? { ...each, results: [result] }
      : each.id === "1"
        ? { ...each, turn: malformed }
        : each,
  );
  assert.deepEqual(
    failuresIn(tree, "tool_failed").map(({ node, read }) => [node, read]),
    [["0.0", "no such city"]],
  );
  assert.deepEqual(
    failuresIn(tree, "malformed").map(({ node, status }) => [node, status]),
    [["1", "no end"]],
  );
  assert.deepEqual(
    failuresIn(tree, "wrong").map(({ node }) => node),
    ["0.0.1", "1"],
  );
  assert.equal(firstMatch(tree, "TEXT OF 0.0.1"), "0.0.1");
});

test("numbers and tokens for people", () => {
  assert.deepEqual([0.08312, 12.44, 4950, -0.5, 2.3e-7, null].map(short), [
    "0.0831",
    "12.4",
    "4,950",
    "−0.50",
    "2.3e-7",
    "–",
  ]);
  assert.deepEqual([0.0123, 1.5, 600].map(seconds), ["12.3 ms", "1.50 s", "10 min"]);
  assert.deepEqual(["<|im_start|>", "</think>", "plain", "a<b>"].map(isSpecial), [true, true, false, false]);
});
