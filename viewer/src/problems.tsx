import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { Open } from "./app";
import { flipped, Occurrences } from "./history";
import { useLoaded } from "./hooks";
import { ShareBar, Table, verdict } from "./parts";
import type { Route } from "./route";
import { hasSteps, rowKey, runName } from "./rows";
import type { Source } from "./source";
import type { Row, Run } from "./types";
import { clip, plural, score, short, signed } from "./words";

interface Props {
  source: Source;
  run: Run;
  rows: Row[];
  open: Open;
  problem: string;
  reading: boolean;
  go(change: Partial<Route>): void;
}

const SHOWN = 200;
/** Attempts up to which each says why it got its reward. */
const FEW = 4;

/** Problems by their change from the first tree to the last, or from the first run to the second: the worst first. */
export function Problems(props: Props): JSX.Element {
  const { rows, run, problem, go } = props;
  const [onlyFlips, setOnlyFlips] = useState(false);
  const pair = run.runs.length === 2;
  const changes = useMemo(() => changesOf(rows, pair), [rows, pair]);
  if (problem !== "") return <OneProblem {...props} />;
  const flips = changes.filter((change) => change.flip !== "");
  const shown = onlyFlips ? flips : changes;
  const worse = changes.filter((change) => change.by < 0).length;
  // Of several runs each cell says which one it is from.
  const from = (row: Row): string => (run.runs.length > 2 ? runName(run, row.run) : "");
  return (
    <div class="problems">
      <h2>Problems that were tried more than once</h2>
      {changes.length === 0 ? (
        <p class="soft">
          {props.reading ? "Reading the index ..." : "No problem was tried in two steps or runs."}
        </p>
      ) : (
        <>
          <p>
            {plural(changes.length, "problem")}, {worse} got worse, {plural(flips.length, "flip")}.
          </p>
          <label class="switch">
            <input
              type="checkbox"
              checked={onlyFlips}
              onChange={(event) => setOnlyFlips(event.currentTarget.checked)}
            />
            Flips only
          </label>
          <Table
            label="Problems"
            head={[
              "Problem",
              "Trees",
              pair ? runName(run, 0) : "First",
              pair ? runName(run, 1) : "Last",
              "Change",
              "Flip",
            ]}
            numbers={[1, 4]}
            rows={shown.slice(0, SHOWN).map((change) => [
              <button class="link" onClick={() => go({ view: "problems", problem: change.last.problem })}>
                {clip(change.last.question, 80) || change.last.problem}
              </button>,
              short(change.count),
              <>
                <ShareBar row={change.first} /> <span class="soft">{from(change.first)}</span>
              </>,
              <>
                <ShareBar row={change.last} /> <span class="soft">{from(change.last)}</span>
              </>,
              signed(change.by),
              change.flip,
            ])}
          />
          {shown.length > SHOWN && <p class="soft">{shown.length - SHOWN} more changed less.</p>}
        </>
      )}
    </div>
  );
}

interface Change {
  first: Row;
  last: Row;
  count: number;
  by: number;
  flip: string;
}

export function changesOf(rows: Row[], pair = false): Change[] {
  const problems = new Map<string, Row[]>();
  for (const row of rows) {
    const trees = problems.get(row.problem);
    if (trees === undefined) problems.set(row.problem, [row]);
    else trees.push(row);
  }
  return [...problems.values()]
    .map((trees) => {
      const tries = triesOf(trees);
      const [first, last] = [tries[0], tries.at(-1)];
      return { first, last, count: trees.length, several: tries.length > 1 };
    })
    .filter((each): each is typeof each & { first: Row; last: Row } => each.several)
    .filter(({ first, last }) => !pair || first.run !== last.run)
    .map(({ first, last, count }) => ({
      first,
      last,
      count,
      by: last.mean - first.mean,
      flip: flipped(first, last),
    }))
    .sort((a, b) => a.by - b.by);
}

/** One row for each step of each run, in order: an evaluation may have several attempts at a problem, each a tree. */
function triesOf(trees: Row[]): Row[] {
  const tries = new Map<string, Row[]>();
  const ordered = [...trees].sort((a, b) => a.run - b.run || a.step - b.step);
  // A tree of which nothing counts has no mean.
  for (const row of ordered.filter((each) => Number.isFinite(each.mean))) {
    const key = `${row.run} ${row.step}`;
    tries.set(key, [...(tries.get(key) ?? []), row]);
  }
  return [...tries.values()].map((group) => {
    const sum = (value: (row: Row) => number): number => group.reduce((all, row) => all + value(row), 0);
    return {
      ...(group[0] as Row),
      mean: sum((row) => row.mean) / group.length,
      right: sum((row) => row.right),
      n: sum((row) => row.n),
    };
  });
}

/** One problem over steps and runs, with the attempts of two of its trees side by side. */
function OneProblem(props: Props): JSX.Element {
  const { rows, problem, source, go, open } = props;
  const trees = useMemo(
    () => rows.filter((row) => row.problem === problem).sort((a, b) => a.run - b.run || a.step - b.step),
    [rows, problem],
  );
  const pair = [trees[0], trees.at(-1)].filter((row) => row !== undefined);
  return (
    <div class="problems">
      <h2>{trees[0]?.question ?? problem}</h2>
      <p>
        <button class="link" onClick={() => go({ view: "problems", problem: "" })}>
          All problems
        </button>
      </p>
      <Occurrences {...{ ...props, here: "" }} />
      <h3>Attempts side by side</h3>
      <div class="sides">
        {[...new Map(pair.map((row) => [rowKey(row), row])).values()].map((row) => (
          <Attempts key={rowKey(row)} {...{ source, row, open, run: props.run }} />
        ))}
      </div>
    </div>
  );
}

function Attempts({
  source,
  row,
  open,
  run,
}: {
  source: Source;
  row: Row;
  open: Open;
  run: Run;
}): JSX.Element {
  const { value, error } = useLoaded(() => source.tree(row.source, row.row), [source, row.source, row.row]);
  return (
    <article>
      <h4>
        {run.runs.length > 1 ? `${runName(run, row.run)}, ` : ""}
        {hasSteps(run) ? `step ${row.step}, ` : ""}
        {row.right} of {row.n} right
      </h4>
      {error !== "" && <p class="failure">{error}</p>}
      <ol class="attempts">
        {value?.trajectories.map((trajectory) => (
          <li key={trajectory.leaf}>
            <button class="link" onClick={() => open(row, trajectory.leaf)}>
              {trajectory.leaf}
            </button>{" "}
            <span class={`verdict ${verdict(trajectory).tone}`}>
              {verdict(trajectory).mark} {score(trajectory.reward)}
            </span>{" "}
            {clip(trajectory.answer, 80) || <i>{trajectory.stop}</i>}
            {row.n <= FEW && <p class="soft">{trajectory.why.join(" ")}</p>}
          </li>
        ))}
      </ol>
    </article>
  );
}
