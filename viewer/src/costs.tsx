import type { JSX } from "preact";
import { Table } from "./parts";
import type { PanelProps } from "./tree_page";
import { plural, score, seconds, short } from "./words";

/** Tokens, cost and time of each trajectory and of the tree. */
export function Costs({ forest, row, leaf, choose }: PanelProps): JSX.Element {
  const { trajectories, nodes } = forest.tree;
  const unique = nodes
    .filter((node) => node.source === "policy")
    .reduce((sum, node) => sum + node.ids.length, 0);
  const sum = (read: (tokens: (typeof trajectories)[number]["tokens"]) => number): number =>
    trajectories.reduce((total, trajectory) => total + read(trajectory.tokens), 0);
  const priced = trajectories.some((trajectory) => trajectory.cost !== null);
  const cost = trajectories.reduce((total, trajectory) => total + (trajectory.cost ?? 0), 0);
  return (
    <section aria-label="Tokens and cost">
      <dl class="facts wide">
        {(
          [
            ["prompt", row.prompt, "tokens of the problem"],
            ["written", unique, "tokens that the policy wrote, shared ones once"],
            ["results", row.results, "tokens of tool results"],
            ["saved by sharing", row.shared, "tokens that separate trajectories would have needed again"],
          ] as const
        ).map(([name, value, hint]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <b>{short(value)}</b> <span class="soft">{hint}</span>
            </dd>
          </div>
        ))}
      </dl>
      <Table
        label="Tokens of each trajectory"
        head={[
          "Trajectory",
          "Reward",
          "Prompt",
          "Written",
          "Results",
          "Sent",
          ...(priced ? ["Cost"] : []),
          "Time",
        ]}
        numbers={[1, 2, 3, 4, 5, 6, 7]}
        rows={[
          ...trajectories.map((trajectory) => [
            <button
              class={`link ${trajectory.leaf === leaf ? "chosen" : ""}`}
              onClick={() => choose(trajectory.leaf)}
            >
              {trajectory.leaf}
            </button>,
            score(trajectory.reward),
            short(trajectory.tokens.prompt),
            short(trajectory.tokens.written),
            short(trajectory.tokens.results),
            short(trajectory.tokens.sent),
            ...(priced ? [short(trajectory.cost)] : []),
            seconds(trajectory.seconds),
          ]),
          [
            <b>{plural(trajectories.length, "trajectory", "trajectories")}</b>,
            "",
            short(sum((tokens) => tokens.prompt)),
            short(sum((tokens) => tokens.written)),
            short(sum((tokens) => tokens.results)),
            short(sum((tokens) => tokens.sent)),
            ...(priced ? [short(cost)] : []),
            "",
          ],
        ]}
      />
      <p class="soft">
        Sent: tokens that the engine had to read for all turns of a trajectory. A shared prefix counts in each
        trajectory.
      </p>
    </section>
  );
}
