import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Chart } from "./chart";
import { Field, Table } from "./parts";
import type { Row, Run } from "./types";
import { plural } from "./words";

const SHOWN = 12;
const FIRST = [
  "reward/mean",
  "reward/leaf_mean",
  "calls/ok_rate",
  "branch/rate",
  "branch/entropy_acted",
  "health/entropy",
  "update/loss",
  "update/mismatch_mean",
];

/** What the run is and its metrics over steps. */
export function RunPage({ run, rows }: { run: Run; rows: Row[] }): JSX.Element {
  const [wanted, setWanted] = useState("");
  const names = Object.keys(run.series);
  const rank = (name: string): number => (FIRST.indexOf(name) + FIRST.length + 1) % (FIRST.length + 1);
  const matching = names
    .filter((name) => name.toLowerCase().includes(wanted.trim().toLowerCase()))
    .sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  return (
    <div class="run-page">
      <h2>{run.title}</h2>
      <Table
        label="About the run"
        head={[]}
        rows={[
          ...run.about.map(([name, text]) => [<b>{name}</b>, text]),
          [<b>trees</b>, `${plural(rows.length, "tree")} in ${plural(run.sources.length, "file")}`],
        ]}
      />
      {names.length > 0 && (
        <>
          <h2>Metrics</h2>
          <Field label="Name contains">
            <input type="search" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
          </Field>
          <div class="charts">
            {matching.slice(0, SHOWN).map((name) => (
              <Chart key={name} title={name} lines={[{ name, points: run.series[name] ?? [] }]} />
            ))}
          </div>
          {matching.length > SHOWN && (
            <p class="soft">{matching.length - SHOWN} more: type a part of a name.</p>
          )}
        </>
      )}
    </div>
  );
}
