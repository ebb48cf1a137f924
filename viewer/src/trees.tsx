import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Open } from "./app";
import { messageOf, useKeys } from "./hooks";
import { List } from "./list";
import { Field, Select } from "./parts";
import { countFlags, filterRows, FLAGS, NO_FILTER, rowKey, runName, type Filter, type Sort } from "./rows";
import type { Source } from "./source";
import type { Row, Run } from "./types";
import { percent, plural, short } from "./words";

interface Props {
  source: Source;
  run: Run;
  rows: Row[];
  shown: Row[];
  filter: Filter;
  setFilter(filter: Filter): void;
  sort: Sort;
  setSort(sort: Sort): void;
  hits: Set<string> | null;
  setHits(hits: Set<string> | null): void;
  cursor: number;
  setCursor(at: number): void;
  open: Open;
}

/** All trees of the run: search, filters, sort. */
export function Trees(props: Props): JSX.Element {
  const { run, rows, filter } = props;
  const search = useRef<HTMLInputElement>(null);
  const counts = useMemo(() => countFlags(rows), [rows]);
  const steps = useMemo(() => [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b), [rows]);
  const kinds = useMemo(
    () => [...new Set(rows.map((row) => row.kind))].filter((kind) => kind !== "").sort(),
    [rows],
  );
  // How each kind does among the trees that pass the other filters.
  const shares = useMemo(() => {
    const others = filterRows(rows, { ...filter, kind: "" }, props.hits);
    return new Map(kinds.map((kind) => [kind, rightOf(others.filter((row) => row.kind === kind))]));
  }, [rows, filter, props.hits, kinds]);
  const change = (part: Partial<Filter>): void => {
    props.setFilter({ ...filter, ...part });
    props.setCursor(0);
  };
  const toggle = (flag: string): void =>
    change({
      flags: filter.flags.includes(flag)
        ? filter.flags.filter((other) => other !== flag)
        : [...filter.flags, flag],
    });
  useKeys({ "/": () => search.current?.focus() });
  return (
    <div class="trees">
      <h2 class="hidden">Trees</h2>
      <div class="filters" role="search">
        <Search {...props} input={search} change={change} />
        {steps.length > 1 && (
          <Select
            label="Step"
            value={String(filter.step ?? "")}
            options={[["", "all"], ...steps.map((step): [string, string] => [String(step), String(step)])]}
            choose={(value) => change({ step: value === "" ? null : Number(value) })}
          />
        )}
        {kinds.length > 1 && (
          <Select
            label="Kind"
            value={filter.kind}
            options={[
              ["", "all"],
              ...kinds.map((kind): [string, string] => [kind, `${kind}${shares.get(kind) ?? ""}`]),
            ]}
            choose={(kind) => change({ kind })}
          />
        )}
        {run.runs.length > 1 && (
          <Select
            label="Run"
            value={String(filter.run ?? "")}
            options={[
              ["", "all"],
              ...run.runs.map((_, at): [string, string] => [String(at), runName(run, at)]),
            ]}
            choose={(value) => change({ run: value === "" ? null : Number(value) })}
          />
        )}
        <div class="flags" role="group" aria-label="Show only trees with">
          {FLAGS.filter(([flag]) => (counts[flag] ?? 0) > 0).map(([flag, label]) => (
            <button
              key={flag}
              class="toggle"
              aria-pressed={filter.flags.includes(flag)}
              onClick={() => toggle(flag)}
            >
              {label} <span class="count">{short(counts[flag])}</span>
            </button>
          ))}
        </div>
        <p class="soft" role="status">
          {summary(props.shown, rows)}{" "}
          {filter !== NO_FILTER && (
            <button
              class="link"
              onClick={() => (props.setFilter(NO_FILTER), props.setHits(null), props.setCursor(0))}
            >
              clear filters
            </button>
          )}
        </p>
      </div>
      <List {...props} all={rows} rows={props.shown} />
    </div>
  );
}

function summary(shown: Row[], rows: Row[]): string {
  const all = shown.reduce((sum, row) => sum + row.n, 0);
  const part =
    shown.length === rows.length
      ? plural(rows.length, "tree")
      : `${short(shown.length)} of ${plural(rows.length, "tree")}`;
  return all === 0 ? part : `${part},${rightOf(shown)} of ${plural(all, "trajectory", "trajectories")} right`;
}

function rightOf(rows: Row[]): string {
  const all = rows.reduce((sum, row) => sum + row.n, 0);
  return all === 0 ? "" : ` ${percent(rows.reduce((sum, row) => sum + row.right, 0) / all)}`;
}

/** Typing searches questions and answers at once; Enter searches the conversations too. */
function Search(
  props: Props & { input: { current: HTMLInputElement | null }; change(part: Partial<Filter>): void },
): JSX.Element {
  const { source, filter, setHits } = props;
  const [note, setNote] = useState("");
  const running = useRef(new AbortController());
  useEffect(() => () => running.current.abort(), []);
  const start = async (): Promise<void> => {
    running.current.abort();
    if (filter.text.trim() === "") return;
    const { signal } = (running.current = new AbortController());
    try {
      const found = await source.search(
        filter.text.trim(),
        (done) => setNote(`searching, ${percent(done)}`),
        signal,
      );
      if (signal.aborted) return;
      setHits(new Set(found.map(([source, row]) => rowKey({ source, row }))));
      setNote(`${plural(found.length, "conversation")} with this text`);
    } catch (error) {
      if (!signal.aborted) setNote(messageOf(error));
    }
  };
  const type = (text: string): void => {
    running.current.abort();
    setHits(null);
    setNote(text.trim() === "" ? "" : "Enter searches calls and results too");
    props.change({ text });
  };
  return (
    <div class="search">
      <Field label="Search">
        <input
          ref={props.input}
          type="search"
          value={filter.text}
          placeholder="question, answer, call, result"
          onInput={(event) => type(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") void start();
            if (event.key === "Escape" || event.key === "ArrowDown") event.currentTarget.blur();
          }}
        />
      </Field>
      <span class="soft" role="status">
        {note}
      </span>
    </div>
  );
}
