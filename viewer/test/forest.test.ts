import assert from "node:assert/strict";
import { test } from "node:test";
import { entropyAt, growForest, layOut, leafBelow, pathTo, walk } from "../src/forest";
import { partner, partOf } from "../src/parting";
import { forked, node, trajectory } from "./trees";

const ids = (nodes: { id: string }[]): string[] => nodes.map(({ id }) => id);

test("a path goes from the root to the node, and a reward is the mean of the trajectories that count", () => {
  const forest = growForest(forked());
  assert.deepEqual(ids(pathTo(forest, "0.0.1")), ["", "0", "0.0", "0.0.1"]);
  assert.equal(forest.reward.get("0.0"), 0.5);
  assert.equal(forest.reward.get(""), 0.5);
  assert.equal(forest.reward.get("1"), null);
});

test("arrow keys: up and down pass over all leaves from a leaf, over one depth from another node", () => {
  const forest = growForest(forked());
  const down = (id: string): string => walk(forest, id, "next");
  assert.deepEqual(["0.0.0", "0.0.1", "1"].map(down), ["0.0.1", "1", "1"]);
  assert.equal(down("0"), "1");
  assert.equal(walk(forest, "1", "previous"), "0.0.1");
  assert.equal(walk(forest, "0.0", "parent"), "0");
  assert.equal(walk(forest, "", "parent"), "");
  assert.equal(walk(forest, "0.0", "child"), "0.0.0");
  assert.equal(walk(forest, "no such node", "child"), "");
  assert.equal(leafBelow(forest, ""), "0.0.0");
});

test("every leaf has a row of its own, an inner node the mean of its children's", () => {
  const { spots, rows, depth } = layOut(growForest(forked()));
  const at = new Map(spots.map((spot) => [spot.node.id, spot.row]));
  assert.deepEqual([rows, depth], [3, 3]);
  assert.deepEqual(
    ["0.0.0", "0.0.1", "1", "0.0", "0", ""].map((id) => at.get(id)),
    [0, 1, 2, 0.5, 0.5, 1.25],
  );
});

test("a chain of 20,000 nodes is laid out, and a loop of parents ends", () => {
  const id = (depth: number): string => `n${depth}`;
  const chain = Array.from({ length: 20_000 }, (_, depth) =>
    node(id(depth), { parent: depth === 0 ? null : id(depth - 1) }),
  );
  const tree = { ...forked(), nodes: chain, trajectories: [trajectory(id(19_999), 1)] };
  const forest = growForest(tree);
  assert.equal(layOut(forest).depth, 19_999);
  assert.equal(leafBelow(forest, id(0)), id(19_999));
  const looped = { ...forked(), nodes: [node(""), node("a", { parent: "b" }), node("b", { parent: "a" })] };
  assert.ok(pathTo(growForest(looped), "a").length <= 4);
});

test("H of a decision is the entropy of the turn behind it", () => {
  const forest = growForest(forked());
  const decision = { node: "0.0", depth: 1 } as never;
  assert.equal(entropyAt(forest, decision), 0.5);
  assert.equal(entropyAt(forest, { node: "0", depth: 1 } as never), 0.2);
});

test("two trajectories part at their first different token, whichever nodes hold them", () => {
  const forest = growForest(forked());
  const { shared, left, right } = partOf(forest, "0.0.0", "0.0.1");
  assert.deepEqual([shared, left[shared]?.text, right[shared]?.text], [10, "y", "z"]);
  assert.equal(partner(forest, "0.0.0"), "0.0.1");
  // The verdict comes first, then the longest shared beginning.
  assert.equal(partner(forest, "1"), "0.0.0");
});
