import type { Call, Node } from "./types";
import { clip } from "./words";

/** A few words for a node in the tree: its call, its answer, its results. */
export function nodeLabel(node: Node): string {
  if (node.source === "prompt") return "prompt";
  if (node.source === "tool") {
    const failed = node.results.find((result) => result.status !== "ok");
    return failed === undefined
      ? clip(node.results.map((result) => result.text).join(" "), 60) || "messages"
      : failed.status;
  }
  const turn = node.turn;
  if (turn === null) return clip(node.text, 60);
  if (turn.kind === "calls") return turn.calls.map(callLabel).join("; ");
  if (turn.kind === "malformed") return `malformed: ${turn.reason ?? ""}`;
  return clip(turn.answer ?? turn.text ?? node.text, 60);
}

/** The names of the calls if they fit into so many letters; else nothing. */
export function shortLabel(node: Node, letters: number): string {
  const names = node.turn?.calls?.map((call) => call.name).join(", ") ?? "";
  return names.length <= letters ? names : "";
}

function callLabel(call: Call): string {
  return `${call.name} ${clip(argumentsText(call.arguments), 60)}`;
}

/** The values of a call's arguments on one line. */
export function argumentsText(value: unknown): string {
  if (typeof value !== "object" || value === null) return String(value);
  return Object.values(value)
    .map((item) => (typeof item === "string" ? item : JSON.stringify(item)))
    .join(", ");
}

export function nodeText(node: Node): string {
  if (node.source === "prompt" && node.messages.length > 0)
    return node.messages.map(({ text }) => text).join("\n");
  return node.text;
}

export interface TurnText {
  thoughts: string[];
  /** What is neither a thought nor a call that is shown by itself. */
  rest: string;
}

const THOUGHTS = [
  /<think>([\s\S]*?)(?:<\/think>|$)/g,
  /<\|channel\|>analysis<\|message\|>([\s\S]*?)(?:<\|end\|>|$)/g,
];

/** The thoughts of a turn, and what else it says: the markup of parsed calls and answers is left out. */
export function readTurn(node: Node): TurnText {
  let rest = node.text;
  const thoughts: string[] = [];
  for (const pattern of THOUGHTS)
    rest = rest.replace(pattern, (_, thought: string) => {
      if (thought.trim() !== "") thoughts.push(thought.trim());
      return "";
    });
  // A template may open the thought in the prompt: then the turn only closes it.
  const end = rest.indexOf("</think>");
  if (end >= 0) {
    thoughts.unshift(rest.slice(0, end).trim());
    rest = rest.slice(end + "</think>".length);
  }
  if (node.turn?.kind === "calls")
    for (const name of ["tool_call", ...node.turn.calls.map((call) => call.name)])
      rest = withoutElement(rest, name);
  if (node.turn?.kind === "final") rest = "";
  return { thoughts, rest: rest.trim() };
}

function withoutElement(text: string, name: string): string {
  let rest = text;
  for (;;) {
    const begin = rest.indexOf(`<${name}>`);
    if (begin < 0) return rest;
    const end = rest.indexOf(`</${name}>`, begin);
    rest = rest.slice(0, begin) + (end < 0 ? "" : rest.slice(end + name.length + 3));
  }
}
