// The values of view schema 1, as src/ramify/view/payload.py makes them.

export interface Run {
  schema: 1;
  kind: "train" | "rollout" | "evaluation" | "synthesis" | "comparison";
  name: string;
  title: string;
  about: [string, string][];
  live: boolean;
  sources: SourceFile[];
  runs: { name: string; dir: string }[];
  series: Record<string, [number, number][]>;
  algorithms: string[];
  columns: string[];
}

/** One file of trees: a step of a training run, or the attempts of an evaluation. */
export interface SourceFile {
  id: string;
  run: number;
  step: number;
  trees: number;
}

export interface Index {
  source: string;
  rows: unknown[][];
}

/** A row of the list: the values of an index row by their column's name, and where it stands. */
export interface Row {
  source: string;
  run: number;
  row: number;
  step: number;
  problem: string;
  question: string;
  answer: string[];
  kind: string;
  mean: number;
  spread: number;
  right: number;
  n: number;
  stops: Record<string, number>;
  flags: string[];
  written: number;
  prompt: number;
  results: number;
  shared: number;
  calls: number;
  failed_calls: number;
  branches: number;
  depth: number;
  seconds: number | null;
}

export interface Message {
  role: string;
  text: string;
}

export interface Call {
  id: string;
  name: string;
  arguments: unknown;
  malformed: string | null;
}

export interface Turn {
  kind: "calls" | "final" | "say" | "malformed";
  calls: Call[];
  answer: string | null;
  text: string | null;
  reason: string | null;
}

export interface Result {
  status: string;
  text: string;
  info: Record<string, unknown>;
  reward: number;
}

export interface Time {
  /** Seconds since the beginning of the step; null if it was not recorded. */
  begin: number | null;
  seconds: number;
  queued: number;
  cached: boolean | null;
  issued: number | null;
}

export interface Node {
  id: string;
  parent: string | null;
  source: "prompt" | "policy" | "tool";
  text: string;
  ids: number[];
  tokens: string[] | null;
  /** Of the engine that sampled the tokens, and of the learner before its update: empty if it did not compute them. */
  logprobs: number[];
  old_logprobs: number[];
  entropies: number[];
  entropy: { lower: number; upper: number; count: number } | null;
  turn: Turn | null;
  results: Result[];
  messages: Message[];
  reward: number;
  version: number | null;
  stop: string | null;
  context: "parent" | "fresh" | { node: string; tokens: number };
  rewriter: string;
  mass: number;
  time: Time | null;
  calls_time: (Time | null)[];
}

export interface Decision {
  node: string;
  depth: number;
  entropy_delta: number;
  probability: number;
  draw: number | null;
  planned: number;
  taken: number;
  entropy_acted: boolean;
  undecided: boolean;
  budget_left: number;
  outcome: "granted" | "no budget" | "refused";
}

export interface Trajectory {
  leaf: string;
  reward: number;
  parts: Record<string, number>;
  events: Record<string, number>;
  counts: boolean;
  stop: string;
  answer: string;
  right: boolean | null;
  why: string[];
  advantage: number | null;
  loss: boolean;
  tokens: { prompt: number; written: number; results: number; sent: number };
  cost: number | null;
  seconds: number | null;
}

/** Per written token of a node: the advantages and the three sums that the update uses. */
export interface NodeCredit {
  advantage: number[];
  s_plus: number[];
  s_minus: number[];
  weight: number[];
}

export interface Credit {
  algorithm: string;
  nodes: Record<string, NodeCredit>;
}

export interface Command {
  name: string;
  template: string;
}

export interface Tree {
  source: string;
  row: number;
  problem: { id: string; messages: Message[]; answer: string[]; info: Record<string, unknown> };
  key: { step: number; slot: number; attempt: number };
  nodes: Node[];
  decisions: Decision[];
  trajectories: Trajectory[];
  credit: Credit | null;
  credits?: Record<string, Record<string, NodeCredit>>;
  commands: Command[];
}

export type Hit = [source: string, row: number, where: string];
export type Occurrence = [source: string, row: number, mean: number, right: number, n: number];
