import { argumentsText } from "./node_text";
import type { Tree } from "./types";

export interface Failure {
  node: string;
  status: string;
  /** The call or the turn. */
  wrote: string;
  /** The text that the policy read then. */
  read: string;
}

/** The nodes for which a tree carries a flag. */
export function failuresIn(tree: Tree, flag: string): Failure[] {
  const failures = failuresOf(tree, flag);
  // A call that could not be read counts as a failed one too.
  if (flag !== "tool_failed" || failures.length > 0) return failures;
  const results = new Set(tree.nodes.filter((node) => node.results.length > 0).map((node) => node.id));
  return failuresOf(tree, "malformed").filter((failure) => results.has(failure.node));
}

function failuresOf(tree: Tree, flag: string): Failure[] {
  const byId = new Map(tree.nodes.map((node) => [node.id, node]));
  switch (flag) {
    case "tool_failed":
    case "malformed":
      return tree.nodes.flatMap((node) => {
        const turn = node.turn?.kind === "malformed" ? node.turn : null;
        const calls = node.parent === null ? [] : (byId.get(node.parent)?.turn?.calls ?? []);
        const results = node.results.flatMap((result, at): Failure[] => {
          const malformed = result.status === "malformed" || calls[at]?.malformed != null;
          const failed = !["ok", "empty", "malformed"].includes(result.status);
          if (flag === "malformed" ? !malformed : !failed) return [];
          const call = calls[at];
          const turn = byId.get(node.parent ?? "")?.text ?? "";
          const wrote =
            call === undefined || malformed ? turn : `${call.name} ${argumentsText(call.arguments)}`;
          return [{ node: node.id, status: result.status, wrote, read: result.text }];
        });
        if (turn === null || flag !== "malformed") return results;
        const below = tree.nodes.find((other) => other.parent === node.id);
        return [
          ...results,
          { node: node.id, status: turn.reason ?? "malformed", wrote: node.text, read: below?.text ?? "" },
        ];
      });
    case "truncated":
      return tree.trajectories
        .filter(({ stop }) => ["tokens", "calls", "deadline"].includes(stop))
        .map(({ leaf, stop }) => ({
          node: leaf,
          status: `stopped: ${stop}`,
          wrote: byId.get(leaf)?.text ?? "",
          read: "",
        }));
    case "mask":
      return tree.trajectories
        .filter(({ loss }) => !loss)
        .map(({ leaf, stop }) => ({ node: leaf, status: `masked, stopped: ${stop}`, wrote: "", read: "" }));
    default:
      return tree.trajectories
        .filter(({ right }) => right === false)
        .map(({ leaf, answer, why }) => ({
          node: leaf,
          status: "wrong",
          wrote: answer,
          read: why.join("\n"),
        }));
  }
}
