import type { Index, Row, Run } from "./types";

/** The flags of the index, with what the page calls them. */
export const FLAGS: [flag: string, label: string][] = [
  ["right", "right"],
  ["wrong", "wrong"],
  ["mixed", "mixed"],
  ["malformed", "malformed turn"],
  ["truncated", "truncated"],
  ["tool_failed", "tool failed"],
  ["entropy_flipped", "entropy flipped a decision"],
  ["mask", "masked from the loss"],
];

/** Flags of what went wrong, in the order in which the page of failures lists them. */
export const FAILURES = ["tool_failed", "malformed", "truncated", "wrong", "mask"];

export interface Filter {
  text: string;
  flags: string[];
  step: number | null;
  run: number | null;
  kind: string;
}

export const NO_FILTER: Filter = { text: "", flags: [], step: null, run: null, kind: "" };

export type SortKey =
  "step" | "problem" | "mean" | "spread" | "right" | "written" | "calls" | "branches" | "seconds";

export interface Sort {
  key: SortKey;
  down: boolean;
}

/** The rows of an index as records. */
export function readRows(run: Run, index: Index): Row[] {
  const place = run.sources.find((source) => source.id === index.source);
  return index.rows.map((values) => {
    const row: Record<string, unknown> = {
      source: index.source,
      run: place?.run ?? 0,
      step: place?.step ?? 0,
    };
    run.columns.forEach((column, at) => {
      if (values[at] !== null || column === "seconds") row[column] = values[at];
    });
    return row as unknown as Row;
  });
}

export function rowKey(row: { source: string; row: number }): string {
  return `${row.source} ${row.row}`;
}

/**
 * The rows that pass: every chosen flag, and the text in the problem's id, question, answer or kind, or in a
 * conversation (`hits` holds the keys of those rows).
 */
export function filterRows(rows: Row[], filter: Filter, hits: Set<string> | null): Row[] {
  const text = filter.text.trim().toLowerCase();
  return rows.filter(
    (row) =>
      filter.flags.every((flag) => row.flags.includes(flag)) &&
      (filter.step === null || row.step === filter.step) &&
      (filter.run === null || row.run === filter.run) &&
      (filter.kind === "" || row.kind === filter.kind) &&
      (text === "" || rowText(row).includes(text) || (hits !== null && hits.has(rowKey(row)))),
  );
}

const texts = new WeakMap<Row, string>();

function rowText(row: Row): string {
  let text = texts.get(row);
  if (text === undefined) {
    text = [row.problem, row.question, row.kind, ...row.answer].join("\n").toLowerCase();
    texts.set(row, text);
  }
  return text;
}

/** Sorted by one column; equal rows stay in the order of the run. */
export function sortRows(rows: Row[], sort: Sort): Row[] {
  const sign = sort.down ? -1 : 1;
  const value = (row: Row): number | string => {
    if (sort.key === "right") return row.n === 0 ? 0 : row.right / row.n;
    return row[sort.key] ?? -1;
  };
  return [...rows].sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    return left < right ? -sign : left > right ? sign : 0;
  });
}

/** How many rows carry each flag. */
export function countFlags(rows: Row[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const row of rows) for (const flag of row.flags) counts[flag] = (counts[flag] ?? 0) + 1;
  return counts;
}

/** Share of right trajectories; 0 for a tree without any. */
export function share(row: { right: number; n: number }): number {
  return row.n === 0 ? 0 : row.right / row.n;
}

/** True if trees of the run belong to different steps; the attempts of an evaluation do not. */
export function hasSteps(run: Run): boolean {
  return run.sources.some((file) => file.step !== run.sources[0]?.step);
}

/** The name of a run without the folders that all names begin with. */
export function runName(run: Run, at: number): string {
  const parts = run.runs.map(({ name }) => name.split("/"));
  const own = parts[at] ?? [];
  let common = 0;
  while (common < own.length - 1 && parts.every((other) => other[common] === own[common])) common++;
  return own.slice(common).join("/");
}
