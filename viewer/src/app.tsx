import type { JSX } from "preact";
import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { Failures } from "./failures";
import { Help } from "./help";
import { useKeys, useRoute, useRun } from "./hooks";
import { Problems } from "./problems";
import { filterRows, NO_FILTER, rowKey, sortRows, type Filter, type Sort } from "./rows";
import type { Route } from "./route";
import { RunPage } from "./run_page";
import type { Source } from "./source";
import { TreePage } from "./tree_page";
import { Trees } from "./trees";
import type { Row, Run } from "./types";
import { short } from "./words";

/** Opens a tree, at a node and with a panel if they are named. */
export type Open = (row: { source: string; row: number }, node?: string, panel?: string) => void;

const VIEWS: [view: Route["view"], label: string, key: string][] = [
  ["trees", "Trees", "1"],
  ["failures", "Failures", "2"],
  ["problems", "Problems", "3"],
  ["run", "Run", "4"],
];

export function App({ source }: { source: Source }): JSX.Element {
  const { run, rows, read, error } = useRun(source);
  const [route, go] = useRoute();
  const [filter, setFilter] = useState<Filter>(NO_FILTER);
  const [sort, setSort] = useState<Sort>({ key: "step", down: false });
  const [hits, setHits] = useState<Set<string> | null>(null);
  const [cursor, setCursor] = useState(0);
  const [help, setHelp] = useState(false);
  const shown = useMemo(() => sortRows(filterRows(rows, filter, hits), sort), [rows, filter, hits, sort]);
  const open = useCallback<Open>(
    (row, node = "", panel = "") => go({ view: "tree", ...address(run, row), node, panel }),
    [run, go],
  );
  const tree = route.view === "tree" ? rowOf(rows, run, route) : null;
  const at = tree === null ? -1 : shown.findIndex((row) => rowKey(row) === rowKey(tree));
  const step = (by: number): void => {
    const next = shown[at + by];
    if (next === undefined) return;
    setCursor(at + by);
    open(next, "", route.panel);
  };
  const main = useRef<HTMLElement>(null);
  useKeys({
    "?": () => setHelp((shown) => !shown),
    Escape: () => (help ? setHelp(false) : go({ view: "trees" })),
    ...Object.fromEntries(VIEWS.map(([view, , key]) => [key, () => go({ view, problem: "" })])),
    n: () => route.view === "tree" && step(1),
    b: () => route.view === "tree" && step(-1),
  });
  if (run === null) return <p class="loading">{error === "" ? "Reading the run ..." : error}</p>;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <h1>
          <button class="home" onClick={() => go({ view: "trees" })}>
            {run.title}
          </button>
        </h1>
        <nav aria-label="Pages">
          {VIEWS.map(([view, label]) => (
            <button
              key={view}
              aria-current={
                route.view === view || (view === "trees" && route.view === "tree") ? "page" : undefined
              }
              onClick={() => go({ view, problem: "" })}
            >
              {label}
            </button>
          ))}
        </nav>
        <span class="soft state" role="status">
          {error !== "" ? error : stateOf(run, rows.length, read)}
        </span>
        <button class="quiet" onClick={() => setHelp(true)}>
          Keys <kbd>?</kbd>
        </button>
      </header>
      <main ref={main} id="main" tabIndex={-1}>
        {route.view === "trees" && (
          <Trees
            {...{
              source,
              run,
              rows,
              shown,
              filter,
              setFilter,
              sort,
              setSort,
              hits,
              setHits,
              cursor,
              setCursor,
              open,
            }}
          />
        )}
        {route.view === "failures" && (
          <Failures {...{ source, run, rows, open, reading: read < run.sources.length }} />
        )}
        {route.view === "problems" && (
          <Problems
            {...{ source, run, rows, open, problem: route.problem, go, reading: read < run.sources.length }}
          />
        )}
        {route.view === "run" && <RunPage run={run} rows={rows} />}
        {route.view === "tree" && tree !== null && (
          <TreePage {...{ source, run, row: tree, rows, route, go, open, step, at, total: shown.length }} />
        )}
        {route.view === "tree" && tree === null && <p class="loading">{missing(run, read)}</p>}
      </main>
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}

function stateOf(run: Run, trees: number, read: number): string {
  const files = read < run.sources.length ? `, reading file ${read + 1} of ${run.sources.length}` : "";
  return `${run.live ? "live, " : ""}${short(trees)} trees${files}`;
}

function missing(run: Run, read: number): string {
  return read < run.sources.length
    ? "Reading the index ..."
    : "This run has no such tree. Press Escape for the list.";
}

/** Step and row; the source too where several files are of one step. */
function address(
  run: Run | null,
  row: { source: string; row: number },
): Pick<Route, "source" | "step" | "row"> {
  const file = run?.sources.find((file) => file.id === row.source);
  const same = run?.sources.filter((other) => other.step === file?.step).length ?? 0;
  return { source: same > 1 ? row.source : "", step: file?.step ?? null, row: row.row };
}

function rowOf(rows: Row[], run: Run | null, route: Route): Row | null {
  const file = run?.sources.find((file) =>
    route.source === "" ? route.step === null || file.step === route.step : file.id === route.source,
  );
  return rows.find((row) => row.source === file?.id && row.row === route.row) ?? null;
}
