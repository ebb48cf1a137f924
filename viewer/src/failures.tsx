import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { Open } from "./app";
import { Chart } from "./chart";
import { failuresIn } from "./failing";
import { useLoaded } from "./hooks";
import { Chip } from "./parts";
import { FAILURES, FLAGS, hasSteps, rowKey, runName } from "./rows";
import type { Source } from "./source";
import type { Row, Run } from "./types";
import { clip, plural } from "./words";

const SHOWN = 8;
const UNFOLDED = 2;
const CAUSES = 4;

/** What went wrong, counted over steps, with the text that the policy read. */
export function Failures(props: {
  source: Source;
  run: Run;
  rows: Row[];
  open: Open;
  reading: boolean;
}): JSX.Element {
  const { source, run, rows, open } = props;
  const kinds = FAILURES.map((flag) => ({
    flag,
    label: FLAGS.find(([name]) => name === flag)?.[1] ?? flag,
    rows: rows.filter((row) => row.flags.includes(flag)),
  })).filter((kind) => kind.rows.length > 0);
  const steps = useMemo(() => new Set(rows.map((row) => row.step)).size, [rows]);
  if (kinds.length === 0)
    return (
      <p class="loading">
        {props.reading ? "Reading the index ..." : `Nothing failed in ${plural(rows.length, "tree")}.`}
      </p>
    );
  return (
    <div class="failures">
      <h2>{steps > 1 ? "Failures: trees by step" : "Failures"}</h2>
      {steps > 1 && (
        <div class="charts">
          {kinds.map((kind) => (
            <Chart key={kind.flag} title={kind.label} lines={countLines(run, rows, kind.flag)} low={0} />
          ))}
        </div>
      )}
      {kinds.map((kind) => (
        <Group key={kind.flag} {...kind} {...{ source, run, open }} />
      ))}
    </div>
  );
}

function countLines(run: Run, rows: Row[], flag: string): { name: string; points: [number, number][] }[] {
  const lines = run.runs.map((_, at) => {
    const counts = new Map<number, number>();
    for (const row of rows)
      if (row.run === at)
        counts.set(row.step, (counts.get(row.step) ?? 0) + (row.flags.includes(flag) ? 1 : 0));
    return { name: runName(run, at), points: [...counts].sort((a, b) => a[0] - b[0]) };
  });
  // Attempts of an evaluation have no steps to run over.
  return lines.filter((line) => line.points.length > 1);
}

function Group(props: {
  flag: string;
  label: string;
  rows: Row[];
  source: Source;
  run: Run;
  open: Open;
}): JSX.Element {
  const [shown, setShown] = useState(SHOWN);
  const rows = [...props.rows].sort((a, b) => a.mean - b.mean);
  return (
    <section aria-label={props.label}>
      <h3>
        {props.label} <span class="soft">{plural(rows.length, "tree")}</span>
      </h3>
      {rows.slice(0, shown).map((row, at) => (
        <Case
          key={rowKey(row)}
          first={at < UNFOLDED}
          row={row}
          flag={props.flag}
          source={props.source}
          run={props.run}
          open={props.open}
        />
      ))}
      {rows.length > shown && (
        <button class="link" onClick={() => setShown(shown + 5 * SHOWN)}>
          {plural(rows.length - shown, "more tree")}
        </button>
      )}
    </section>
  );
}

/** One tree; its body is read when it is unfolded. */
function Case(props: {
  row: Row;
  flag: string;
  source: Source;
  run: Run;
  open: Open;
  first: boolean;
}): JSX.Element {
  const { row, flag, source, run, open } = props;
  const [unfolded, setUnfolded] = useState(props.first);
  return (
    <details class="case" open={unfolded} onToggle={(event) => setUnfolded(event.currentTarget.open)}>
      <summary>
        {hasSteps(run) && <span class="soft">step {row.step} </span>} {clip(row.question, 110) || row.problem}
      </summary>
      {unfolded && <Causes {...{ row, flag, source, open }} />}
    </details>
  );
}

function Causes({
  row,
  flag,
  source,
  open,
}: {
  row: Row;
  flag: string;
  source: Source;
  open: Open;
}): JSX.Element {
  const [shown, setShown] = useState(CAUSES);
  const { value, error } = useLoaded(() => source.tree(row.source, row.row), [source, row.source, row.row]);
  if (error !== "") return <p class="failure">{error}</p>;
  if (value === null) return <p class="soft">Reading ...</p>;
  const failures = failuresIn(value, flag);
  return (
    <ul>
      {failures.slice(0, shown).map((failure, at) => (
        <li key={at}>
          <button class="link" onClick={() => open(row, failure.node)}>
            {failure.node || "prompt"}
          </button>{" "}
          <Chip tone="bad">{failure.status}</Chip>{" "}
          {failure.wrote !== "" && <code>{clip(failure.wrote, 200)}</code>}
          {failure.read !== "" && <pre class="text">{failure.read}</pre>}
        </li>
      ))}
      {failures.length > shown && (
        <li>
          <button class="link" onClick={() => setShown(failures.length)}>
            {failures.length - shown} more in this tree
          </button>
        </li>
      )}
    </ul>
  );
}
