import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import type { Open } from "./app";
import { useKeys, useSize } from "./hooks";
import { Chip, ShareBar } from "./parts";
import { FAILURES, FLAGS, rowKey, type Sort, type SortKey } from "./rows";
import type { Row, Run } from "./types";
import { clip, seconds, short } from "./words";

const ROW = 40;
const ROW_NARROW = 84;
const NARROW = 720;
const BEYOND = 6;

interface Props {
  run: Run;
  rows: Row[];
  sort: Sort;
  setSort(sort: Sort): void;
  cursor: number;
  setCursor(at: number): void;
  open: Open;
}

const COLUMNS: [key: SortKey, label: string, hint: string][] = [
  ["problem", "Problem", "The last question of the problem"],
  ["step", "Step", "Training step"],
  ["right", "Right", "Right trajectories of all"],
  ["mean", "Reward", "Mean reward of the trajectories that count"],
  ["spread", "Spread", "Largest minus smallest reward"],
  ["written", "Tokens", "Tokens that the policy wrote"],
  ["calls", "Calls", "Tool calls, failed ones in brackets"],
  ["branches", "Branches", "Trajectories that began at a branch"],
  ["seconds", "Time", "Time of the tree's turns and calls"],
];

/** The rows in view and a few beyond: a list of any length scrolls and walks alike. */
export function List(props: Props): JSX.Element {
  const { rows, cursor, setCursor, open, sort, setSort } = props;
  const [box, size] = useSize<HTMLDivElement>();
  const [top, setTop] = useState(0);
  const narrow = size.width > 0 && size.width < NARROW;
  const height = narrow ? ROW_NARROW : ROW;
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
    else if (to + head > element.scrollTop + element.clientHeight) element.scrollTop = to + head - element.clientHeight;
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
      <div class="list-head" role="row" aria-rowindex={1}>
        {COLUMNS.map(([key, label, hint]) => (
          <span key={key} role="columnheader" aria-sort={sort.key === key ? (sort.down ? "descending" : "ascending") : "none"}>
            <button title={hint} onClick={() => setSort({ key, down: sort.key === key ? !sort.down : key !== "problem" && key !== "step" })}>
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
            {...{ row, run: props.run, at: first + at, top: (first + at) * height, chosen: first + at === cursor }}
            open={() => (setCursor(first + at), open(row))}
          />
        ))}
      </div>
      {rows.length === 0 && <p class="loading">No tree passes these filters.</p>}
    </div>
  );
}

function Item(props: { row: Row; run: Run; at: number; top: number; chosen: boolean; open(): void }): JSX.Element {
  const { row, run } = props;
  const failures = FLAGS.filter(([flag]) => FAILURES.includes(flag) && flag !== "wrong" && row.flags.includes(flag));
  return (
    <div
      id={`row-${props.at}`}
      class={`list-row ${props.chosen ? "chosen" : ""}`}
      role="row"
      aria-rowindex={props.at + 2}
      aria-selected={props.chosen}
      style={{ transform: `translateY(${props.top}px)` }}
      onClick={props.open}
    >
      <span role="gridcell" class="question">
        <b title={row.question}>{clip(row.question, 160) || row.problem}</b>
        <span class="soft">{[row.kind, run.runs.length > 1 ? run.runs[row.run]?.name : ""].filter(Boolean).join(", ")}</span>
        {failures.map(([flag, label]) => (
          <Chip key={flag} tone="bad">
            {label.split(" ").at(-1) === "turn" ? "malformed" : label}
          </Chip>
        ))}
        {row.flags.includes("entropy_flipped") && <Chip>entropy</Chip>}
      </span>
      <span role="gridcell" data-label="step">
        {short(row.step)}
      </span>
      <span role="gridcell">
        <ShareBar row={row} />
      </span>
      <span role="gridcell" data-label="reward">
        {short(row.mean)}
      </span>
      <span role="gridcell" data-label="spread">
        {short(row.spread)}
      </span>
      <span role="gridcell" data-label="tokens">
        {short(row.written)}
      </span>
      <span role="gridcell" data-label="calls">
        {short(row.calls)}
        {row.failed_calls > 0 ? ` (${row.failed_calls})` : ""}
      </span>
      <span role="gridcell" data-label="branches">
        {short(row.branches)}
      </span>
      <span role="gridcell" data-label="time">
        {seconds(row.seconds)}
      </span>
    </div>
  );
}
