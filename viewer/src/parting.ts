import type { Forest } from "./forest";
import { pathTo } from "./forest";
import type { Node } from "./types";

/** One token of a trajectory, with the node that wrote it and its index there. */
export interface Token {
  node: Node;
  at: number;
  id: number;
  text: string;
}

/** All tokens of a trajectory in order; tokens without texts are shown by their ids. */
export function tokensOf(path: Node[]): Token[] {
  return path.flatMap((node) =>
    node.ids.map((id, at) => ({ node, at, id, text: node.tokens?.[at] ?? `[${id}]` })),
  );
}

export interface Parting {
  left: Token[];
  right: Token[];
  /** Tokens that both share; the next is the first that differs, or the end of one of them. */
  shared: number;
}

/** The first token at which two trajectories part. */
export function partOf(forest: Forest, left: string, right: string): Parting {
  const [a, b] = [tokensOf(pathTo(forest, left)), tokensOf(pathTo(forest, right))];
  let shared = 0;
  while (shared < a.length && shared < b.length && a[shared]?.id === b[shared]?.id) shared++;
  return { left: a, right: b, shared };
}

/**
 * The trajectory to compare with: of those with another verdict (or else another reward), the one that shares most
 * tokens; without such the next leaf.
 */
export function partner(forest: Forest, leaf: string): string | null {
  const own = forest.trajectories.get(leaf);
  const others = forest.tree.trajectories.filter((other) => other.leaf !== leaf);
  if (own === undefined || others.length === 0) return others[0]?.leaf ?? null;
  const differing = others.filter((other) => other.right !== own.right || other.reward !== own.reward);
  const candidates = differing.length > 0 ? differing : others;
  const scores = candidates.map((other): [string, number] => [
    other.leaf,
    partOf(forest, leaf, other.leaf).shared + (other.right !== own.right ? 1e6 : 0),
  ]);
  return scores.reduce((best, score) => (score[1] > best[1] ? score : best))[0];
}
