import type { Decision, Node, Trajectory, Tree } from "./types";

/** A tree with what its drawing and its walks need, worked out once. */
export interface Forest {
  tree: Tree;
  byId: Map<string, Node>;
  children: Map<string, Node[]>;
  /** Mean reward of the counted trajectories through a node; null if none counts. */
  reward: Map<string, number | null>;
  trajectories: Map<string, Trajectory>;
  decisions: Map<string, Decision[]>;
  depth: Map<string, number>;
  /** Depth first, children in their order. */
  order: Node[];
  root: Node;
}

export function growForest(tree: Tree): Forest {
  const byId = new Map(tree.nodes.map((node) => [node.id, node]));
  const children = new Map<string, Node[]>(tree.nodes.map((node) => [node.id, []]));
  for (const node of tree.nodes) if (node.parent !== null) children.get(node.parent)?.push(node);
  const decisions = new Map<string, Decision[]>();
  for (const decision of tree.decisions)
    decisions.set(decision.node, [...(decisions.get(decision.node) ?? []), decision]);
  const root = tree.nodes.find((node) => node.parent === null || !byId.has(node.parent));
  if (root === undefined) throw new Error("The tree has no nodes.");
  const order: Node[] = [];
  const depth = new Map([[root.id, 0]]);
  const waiting = [root];
  for (let node = waiting.pop(); node !== undefined; node = waiting.pop()) {
    order.push(node);
    const below = children.get(node.id) ?? [];
    for (const child of below) depth.set(child.id, (depth.get(node.id) ?? 0) + 1);
    waiting.push(...[...below].reverse());
  }
  const trajectories = new Map(tree.trajectories.map((trajectory) => [trajectory.leaf, trajectory]));
  const forest = { tree, byId, children, trajectories, decisions, depth, order, root };
  const sums = new Map<string, [sum: number, count: number]>();
  for (const trajectory of tree.trajectories.filter((trajectory) => trajectory.counts))
    for (const node of pathTo(forest, trajectory.leaf)) {
      const [sum, count] = sums.get(node.id) ?? [0, 0];
      sums.set(node.id, [sum + trajectory.reward, count + 1]);
    }
  const reward = new Map(
    tree.nodes.map((node) => {
      const [sum, count] = sums.get(node.id) ?? [0, 0];
      return [node.id, count === 0 ? null : sum / count];
    }),
  );
  return { ...forest, reward };
}

/** Root to `id`, both included; empty for an unknown id. */
export function pathTo(forest: Pick<Forest, "byId">, id: string): Node[] {
  const path: Node[] = [];
  let node = forest.byId.get(id);
  while (node !== undefined && path.length <= forest.byId.size) {
    path.unshift(node);
    node = node.parent === null ? undefined : forest.byId.get(node.parent);
  }
  return path;
}

/** The leaf that a click on a node shows: itself, or the first below it. */
export function leafBelow(forest: Forest, id: string): string {
  let node = id;
  for (let depth = 0; depth < forest.byId.size; depth++) {
    const first = forest.children.get(node)?.[0];
    if (first === undefined) return node;
    node = first.id;
  }
  return node;
}

export type Direction = "parent" | "child" | "next" | "previous";

export function isLeaf(forest: Forest, id: string): boolean {
  return (forest.children.get(id) ?? []).length === 0;
}

/** The neighbour of a node: up and down go over all leaves from a leaf, over all nodes of one depth from another. */
export function walk(forest: Forest, id: string, direction: Direction): string {
  const node = forest.byId.get(id);
  if (node === undefined) return forest.root.id;
  if (direction === "parent") return node.parent !== null && forest.byId.has(node.parent) ? node.parent : id;
  if (direction === "child") return forest.children.get(id)?.[0]?.id ?? id;
  const level = forest.order.filter((other) =>
    isLeaf(forest, id) ? isLeaf(forest, other.id) : forest.depth.get(other.id) === forest.depth.get(id),
  );
  const at = level.findIndex((other) => other.id === id);
  return level[at + (direction === "next" ? 1 : -1)]?.id ?? id;
}

export interface Spot {
  node: Node;
  /** Turns from the root, and the row of leaves: halves of rows stand between two leaves. */
  depth: number;
  row: number;
}

/** Leaves below each other in their order; an inner node at the mean of its children. */
export function layOut(forest: Forest): { spots: Spot[]; depth: number; rows: number } {
  const rows = new Map<string, number>();
  let leaves = 0;
  for (const node of forest.order) if (isLeaf(forest, node.id)) rows.set(node.id, leaves++);
  for (const node of [...forest.order].reverse()) {
    const below = (forest.children.get(node.id) ?? []).map((child) => rows.get(child.id) ?? 0);
    if (below.length > 0) rows.set(node.id, below.reduce((sum, row) => sum + row, 0) / below.length);
  }
  const spots = forest.order.map((node) => ({
    node,
    depth: forest.depth.get(node.id) ?? 0,
    row: rows.get(node.id) ?? 0,
  }));
  return { spots, depth: Math.max(...spots.map((spot) => spot.depth)), rows: leaves };
}

/** Entropy in nats a token of the first policy tokens behind a decision. */
export function entropyAt(forest: Forest, decision: Decision): number | null {
  const node = forest.byId.get(decision.node);
  const probe =
    node?.source === "policy" ? node : forest.children.get(decision.node)?.find((child) => child.entropy);
  const bracket = probe?.entropy ?? null;
  return bracket === null ? null : (bracket.lower + bracket.upper) / 2;
}
