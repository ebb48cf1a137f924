import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import type { Open } from "./app";
import { useKeys, useSize } from "./hooks";
import { Chip, ShareBar } from "./parts";
import { FAILURES, FLAGS, hasSteps, rowKey, runName, type Sort, type SortKey } from "./rows";
import type { Row, Run } from "./types";
import { clip, score, seconds, short } from "./words";

const ROW = 40;
const ROW_NARROW = 70;
const NARROW = 720;
const BEYOND = 6;

interface Props {
  run: Run;
  /** All rows of the run, and those that pass. */
  all: Row[];
  rows: Row[];
  sort: Sort;
  setSort(sort: Sort): void;
  cursor: number;
  setCursor(at: number): void;
  open: Open;
}

interface Column {
  key: SortKey;
  label: string;
  hint: string;
  width: string;
  cell(row: Row, run: Run): ComponentChildren;
}

const COLUMNS: Column[] = [
  {
    key: "problem",
    label: "Problem",
    hint: "The last question of the problem",
    width: "minmax(260px, 1fr)",
    cell: problemCell,
  },
  { key: "step", label: "Step", hint: "Training step", width: "52px", cell: (row) => short(row.step) },
  {
    key: "right",
    label: "Right",
    hint: "Right trajectories of all",
    width: "124px",
    cell: (row) => <ShareBar row={row} />,
  },
  {
    key: "mean",
    label: "Reward",
    hint: "Mean reward of the trajectories that count",
    width: "72px",
    cell: (row) => score(row.mean),
  },
  {
    key: "spread",
    label: "Spread",
    hint: "Largest minus smallest reward",
    width: "72px",
    cell: (row) => score(row.spread),
  },
  {
    key: "written",
    label: "Tokens",
    hint: "Tokens that the policy wrote",
    width: "72px",
    cell: (row) => short(row.written),
  },
  {
    key: "calls",
    label: "Calls",
    hint: "Tool calls, failed ones in brackets",
    width: "76px",
    cell: (row) => `${short(row.calls)}${row.failed_calls > 0 ? ` (${row.failed_calls})` : ""}`,
  },
  {
    key: "branches",
    label: "Branches",
    hint: "Trajectories that began at a branch",
    width: "84px",
    cell: (row) => short(row.branches),
  },
  {
    key: "seconds",
    label: "Time",
    hint: "From the tree's first turn or call to its last",
    width: "84px",
    cell: (row) => seconds(row.seconds),
  },
];

/** The columns that say something about this run. */
function columnsOf(run: Run, rows: Row[]): Column[] {
  const trees = rows.some((row) => row.n > 1);
  const timed = rows.some((row) => row.seconds !== null);
  return COLUMNS.filter(
    ({ key }) =>
      (trees || (key !== "spread" && key !== "branches")) &&
      (hasSteps(run) || key !== "step") &&
      (timed || key !== "seconds"),
  );
}

function problemCell(row: Row, run: Run): JSX.Element {
  const failures = FLAGS.filter(
    ([flag]) => FAILURES.includes(flag) && flag !== "wrong" && row.flags.includes(flag),
  );
  return (
    <>
      <b title={row.question}>{clip(row.question, 160) || row.problem}</b>
      <span class="soft">
        {[row.kind, run.runs.length > 1 ? runName(run, row.run) : ""].filter(Boolean).join(", ")}
      </span>
      {failures.map(([flag, label]) => (
        <Chip key={flag} tone="bad">
          {label}
        </Chip>
      ))}
      {row.flags.includes("entropy_flipped") && <Chip>entropy</Chip>}
    </>
  );
}

/** The rows in view and a few beyond: a list of any length scrolls and walks alike. */
export function List(props: Props): JSX.Element {
  const { rows, cursor, setCursor, open, sort, setSort } = props;
  const [box, size] = useSize<HTMLDivElement>();
  const [top, setTop] = useState(0);
  const narrow = size.width > 0 && size.width < NARROW;
  const height = narrow ? ROW_NARROW : ROW;
  const columns = useMemo(() => columnsOf(props.run, props.all), [props.run, props.all]);
  const grid = narrow ? {} : { gridTemplateColumns: columns.map(({ width }) => width).join(" ") };
  const page = Math.max(1, Math.floor(size.height / height) - 2);
  const move = (to: number): void => setCursor(Math.max(0, Math.min(rows.length - 1, to)));
  useKeys({
    ArrowDown: () => move(cursor + 1),
    ArrowUp: () => move(cursor - 1),
    j: () => move(cursor + 1),
    k: () => move(cursor - 1),
    PageDown: () => move(cursor + page),
    PageUp: () => move(cursor - page),
    Home: () => move(0),
    End: () => move(rows.length - 1),
    Enter: () => rows[cursor] !== undefined && open(rows[cursor]),
  });
  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    const head = narrow ? 0 : ROW;
    const [from, to] = [cursor * height, (cursor + 1) * height];
    if (from < element.scrollTop) element.scrollTop = from;
    else if (to + head > element.scrollTop + element.clientHeight)
      element.scrollTop = to + head - element.clientHeight;
  }, [cursor, height, size.height]);
  useEffect(() => {
    if (cursor >= rows.length) move(rows.length - 1);
  }, [rows]);
  const first = Math.max(0, Math.floor(top / height) - BEYOND);
  const last = Math.min(rows.length, Math.ceil((top + (size.height || 800)) / height) + BEYOND);
  return (
    <div
      ref={box}
      class={`list ${narrow ? "narrow" : ""}`}
      role="grid"
      aria-label="Trees"
      aria-rowcount={rows.length + 1}
      aria-activedescendant={rows.length > 0 ? `row-${cursor}` : undefined}
      tabIndex={0}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <div class="list-head" role="row" aria-rowindex={1} style={grid}>
        {columns.map(({ key, label, hint }) => (
          <span
            key={key}
            role="columnheader"
            class={`cell-${key}`}
            aria-sort={sort.key === key ? (sort.down ? "descending" : "ascending") : "none"}
          >
            <button
              title={hint}
              onClick={() =>
                setSort({ key, down: sort.key === key ? !sort.down : key !== "problem" && key !== "step" })
              }
            >
              {label}
              <span class="arrow">{sort.key === key ? (sort.down ? "↓" : "↑") : ""}</span>
            </button>
          </span>
        ))}
      </div>
      <div role="rowgroup" class="list-body" style={{ height: `${rows.length * height}px` }}>
        {rows.slice(first, last).map((row, at) => (
          <Item
            key={rowKey(row)}
            {...{
              row,
              run: props.run,
              columns,
              grid,
              at: first + at,
              top: (first + at) * height,
              chosen: first + at === cursor,
            }}
            open={() => (setCursor(first + at), open(row))}
          />
        ))}
      </div>
      {rows.length === 0 && <p class="loading">No tree passes these filters.</p>}
    </div>
  );
}

interface ItemProps {
  row: Row;
  run: Run;
  columns: Column[];
  grid: { gridTemplateColumns?: string };
  at: number;
  top: number;
  chosen: boolean;
  open(): void;
}

function Item({ row, run, columns, grid, at, top, chosen, open }: ItemProps): JSX.Element {
  return (
    <div
      id={`row-${at}`}
      class={`list-row ${chosen ? "chosen" : ""}`}
      role="row"
      aria-rowindex={at + 2}
      aria-selected={chosen}
      style={{ ...grid, transform: `translateY(${top}px)` }}
      onClick={open}
    >
      {columns.map(({ key, label, cell }) => (
        <span key={key} role="gridcell" class={`cell-${key}`} data-label={label}>
          {cell(row, run)}
        </span>
      ))}
    </div>
  );
}
