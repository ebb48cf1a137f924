import type { JSX } from "preact";
import { entropyAt } from "./forest";
import { Chip, Table } from "./parts";
import type { PanelProps } from "./tree_page";
import { plural, short, signed } from "./words";

/** Every branch decision of the tree with the numbers that it came from. */
export function Decisions({ forest, choose, node }: PanelProps): JSX.Element {
  const { decisions } = forest.tree;
  if (decisions.length === 0) return <p class="soft">No branch was decided in this tree.</p>;
  const count = (outcome: string): number =>
    decisions.filter((decision) => decision.outcome === outcome).length;
  const flipped = decisions.filter((decision) => decision.entropy_acted).length;
  return (
    <section aria-label="Branch decisions">
      <p>
        {plural(decisions.length, "decision")}: {count("granted")} granted, {count("no budget")} without
        budget, {count("refused")} refused. Entropy flipped {flipped}.
      </p>
      <Table
        label="Branch decisions"
        head={["Node", "Outcome", "Entropy", "H", "ΔH", "P", "Draw", "Taken", "Budget left"]}
        numbers={[3, 4, 5, 6, 7, 8]}
        rows={decisions.map((decision) => [
          <button
            class={`link ${decision.node === node ? "chosen" : ""}`}
            onClick={() => choose(decision.node)}
          >
            {decision.node || "prompt"}
          </button>,
          <Chip tone={decision.outcome === "granted" ? "good" : ""}>{decision.outcome}</Chip>,
          decision.undecided ? (
            "undecided"
          ) : decision.entropy_acted ? (
            <Chip tone="mark">flipped it</Chip>
          ) : (
            ""
          ),
          short(entropyAt(forest, decision)),
          signed(decision.entropy_delta),
          short(decision.probability),
          short(decision.draw),
          `${short(decision.taken)} of ${short(decision.planned)}`,
          short(decision.budget_left),
        ])}
      />
      <p class="soft">
        H is the mean entropy of the first tokens after the result, ΔH its difference to the beginning of the
        trajectory, both in nats a token. A branch is planned if the draw is below P, and taken while the
        budget lasts. “Flipped” says that the same draw without entropy would have decided otherwise.
      </p>
    </section>
  );
}
