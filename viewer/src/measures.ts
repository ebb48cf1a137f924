import type { Forest } from "./forest";
import { pathTo } from "./forest";
import type { Node, NodeCredit } from "./types";

export interface Measure {
  key: string;
  label: string;
  hint: string;
  /** Values have a sign, so that colours go both ways from 0. */
  signed: boolean;
  /** One number a token of the node, null where it has none. */
  values(node: Node): (number | null)[];
}

const fill = (node: Node, value: number | null): (number | null)[] => node.ids.map(() => value);

/** Numbers of the tokens that the policy wrote; null for all others. */
function written(node: Node, values: number[]): (number | null)[] {
  return node.source === "policy" && values.length > 0
    ? node.ids.map((_, at) => values[at] ?? null)
    : fill(node, null);
}

function credited(
  key: keyof NodeCredit,
  label: string,
  hint: string,
  signed: boolean,
  nodes: Record<string, NodeCredit>,
): Measure {
  return { key, label, hint, signed, values: (node) => written(node, nodes[node.id]?.[key] ?? []) };
}

/** What can be shown for each token of this tree. */
export function measuresOf(
  forest: Forest,
  leaf: string,
  nodes: Record<string, NodeCredit> | null,
): Measure[] {
  const trajectory = forest.trajectories.get(leaf);
  const measures: Measure[] = [
    {
      key: "logprob",
      label: "log probability",
      hint: "Log of the probability with which the policy chose the token, in nats",
      signed: false,
      values: (node) => written(node, node.logprobs),
    },
    {
      key: "entropy",
      label: "entropy",
      hint: "Entropy of the policy's distribution before the token, in nats",
      signed: false,
      values: (node) => written(node, node.entropies),
    },
    {
      key: "mismatch",
      label: "mismatch",
      hint: "Log of the learner's probability of the token against the engine's, in nats",
      signed: true,
      values: (node) =>
        written(
          node,
          (node.old_logprobs ?? []).map((value, at) => value - (node.logprobs[at] ?? value)),
        ),
    },
    {
      key: "mask",
      label: "loss mask",
      hint: "1 where a token is trained on, 0 where it is not",
      signed: false,
      values: (node) => fill(node, node.source === "policy" && (trajectory?.loss ?? true) ? 1 : 0),
    },
  ];
  if (nodes !== null)
    measures.push(
      credited("advantage", "advantage", "Mean advantage of the trajectories through the token", true, nodes),
      credited("s_plus", "S+", "Sum of the weighted advantages above 0", true, nodes),
      credited("s_minus", "S−", "Sum of the weighted advantages below 0", true, nodes),
      credited("weight", "W", "Sum of the weights", false, nodes),
    );
  return measures.filter((measure) =>
    forest.tree.nodes.some((node) => measure.values(node).some((v) => v !== null)),
  );
}

/** Smallest and largest value on a path; equal numbers if all are equal, null if there is none. */
export function range(forest: Forest, leaf: string, measure: Measure): [number, number] | null {
  const values = pathTo(forest, leaf).flatMap((node) =>
    measure.values(node).filter((value) => value !== null),
  );
  return values.length === 0 ? null : [Math.min(...values), Math.max(...values)];
}

/** -1 to 1: a signed value by the larger end of the range, another one from the low end (0) to the high end (1). */
export function strength(value: number, [low, high]: [number, number], measure: Measure): number {
  if (measure.signed) {
    const end = Math.max(Math.abs(low), Math.abs(high));
    return end === 0 ? 0 : value / end;
  }
  // A token that was sure to come is pale, one that was a surprise is dark.
  if (measure.key === "logprob") return low === 0 ? 0 : value / Math.min(low, -1e-9);
  return high === 0 ? 0 : value / high;
}

/** The change of S+, S-, W and the advantages from one algorithm to another. */
export function difference(
  own: Record<string, NodeCredit>,
  other: Record<string, NodeCredit>,
): Record<string, NodeCredit> {
  const minus = (a: number[] = [], b: number[] = []): number[] => a.map((value, at) => value - (b[at] ?? 0));
  return Object.fromEntries(
    Object.entries(other).map(([id, credit]) => [
      id,
      {
        advantage: minus(credit.advantage, own[id]?.advantage),
        s_plus: minus(credit.s_plus, own[id]?.s_plus),
        s_minus: minus(credit.s_minus, own[id]?.s_minus),
        weight: minus(credit.weight, own[id]?.weight),
      },
    ]),
  );
}
