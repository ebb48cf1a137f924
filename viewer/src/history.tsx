import type { JSX } from "preact";
import type { Open } from "./app";
import { Chart } from "./chart";
import { useLoaded } from "./hooks";
import { ShareBar, Table } from "./parts";
import type { Source } from "./source";
import type { PanelProps } from "./tree_page";
import type { Row, Run } from "./types";
import { hasSteps, rowKey, runName, share } from "./rows";
import { plural, score, short, signed } from "./words";

/** The same problem at all steps and in all runs. */
export function History(props: PanelProps): JSX.Element {
  return <Occurrences {...props} problem={props.row.problem} here={rowKey(props.row)} />;
}

export function Occurrences(props: {
  source: Source;
  run: Run;
  rows: Row[];
  problem: string;
  here: string;
  open: Open;
}): JSX.Element {
  const { source, run, rows, problem } = props;
  const { value, error } = useLoaded(() => source.problem(problem), [source, problem, rows.length]);
  if (error !== "") return <p class="failure">{error}</p>;
  if (value === null) return <p class="soft">Searching ...</p>;
  const files = new Map(run.sources.map((file) => [file.id, file]));
  const seen = value.map(([source, row, mean, right, n]) => ({
    source,
    row,
    mean,
    right,
    n,
    step: files.get(source)?.step ?? 0,
    run: files.get(source)?.run ?? 0,
  }));
  const lines = run.runs
    .map((_, at) => ({
      name: runName(run, at),
      points: seen.filter((each) => each.run === at).map((each): [number, number] => [each.step, each.mean]),
    }))
    .filter((line) => line.points.length > 0);
  return (
    <section aria-label="The same problem">
      <p>
        {plural(seen.length, "tree")} of problem <code>{problem}</code>.
      </p>
      {lines.some((line) => line.points.length > 1) && (
        <Chart title="Mean reward by step" lines={lines} dots low={0} />
      )}
      <Table
        label="Trees of this problem"
        head={[
          ...(run.runs.length > 1 ? ["Run"] : []),
          hasSteps(run) ? "Step" : "Tree",
          "Right",
          "Reward",
          "Change",
          "Flip",
        ]}
        numbers={run.runs.length > 1 ? [1, 3, 4] : [0, 2, 3]}
        rows={seen.map((each, at) => {
          const before = seen[at - 1];
          const flip = before === undefined ? "" : flipped(before, each);
          return [
            ...(run.runs.length > 1 ? [runName(run, each.run)] : []),
            <button
              class={`link ${rowKey(each) === props.here ? "chosen" : ""}`}
              onClick={() => props.open(each)}
            >
              {hasSteps(run) ? short(each.step) : short(each.row)}
            </button>,
            <ShareBar row={each} />,
            score(each.mean),
            before === undefined ? "" : signed(each.mean - before.mean),
            flip,
          ];
        })}
      />
    </section>
  );
}

/** Where most trajectories were right before and are wrong now, or the other way round. */
export function flipped(before: { right: number; n: number }, now: { right: number; n: number }): string {
  const [was, is] = [share(before) >= 0.5, share(now) >= 0.5];
  if (was === is) return "";
  return is ? "flipped to right" : "flipped to wrong";
}
