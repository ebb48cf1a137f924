import type { JSX } from "preact";
import { Verdict } from "./parts";
import type { PanelProps } from "./tree_page";
import { clip, plural, short, signed } from "./words";

/** Answer, gold, reward and why, of the chosen trajectory. */
export function VerdictCard({ forest, leaf, choose }: PanelProps): JSX.Element {
  const trajectory = forest.trajectories.get(leaf);
  if (trajectory === undefined) return <p class="soft">No reward was recorded for this trajectory.</p>;
  const parts = Object.entries(trajectory.parts);
  const events = Object.entries(trajectory.events);
  const best = (forest.tree.trajectories ?? []).indexOf(trajectory);
  return (
    <section class="card" aria-label="Answer and reward">
      <h3>
        <Verdict trajectory={trajectory} />{" "}
        <span class="soft">
          trajectory {best + 1} of {forest.tree.trajectories.length}, <code>{leaf}</code>
        </span>
      </h3>
      <dl class="facts">
        <Fact name="answer">{trajectory.answer === "" ? <i>none</i> : clip(trajectory.answer, 300)}</Fact>
        <Fact name="gold">
          {forest.tree.problem.answer.map((gold) => clip(gold, 200)).join(" | ") || <i>none</i>}
        </Fact>
        <Fact name="ended">{trajectory.stop}</Fact>
        {trajectory.advantage !== null && <Fact name="advantage">{signed(trajectory.advantage)}</Fact>}
        {!trajectory.counts && <Fact name="counts">no: its reward says nothing about the policy</Fact>}
        {!trajectory.loss && <Fact name="loss">masked: its tokens are not trained on</Fact>}
      </dl>
      {trajectory.why.length > 0 && (
        <ul class="why">
          {trajectory.why.map((sentence, at) => (
            <li key={at}>{sentence}</li>
          ))}
        </ul>
      )}
      {parts.length > 0 && (
        <details>
          <summary>{plural(parts.length, "part")} of the reward</summary>
          <dl class="facts">
            {parts.map(([name, value]) => (
              <Fact key={name} name={name}>
                {short(value)}
              </Fact>
            ))}
          </dl>
        </details>
      )}
      {events.map(([node, value]) => (
        <p key={node}>
          Reward {signed(value)} at{" "}
          <button class="link" onClick={() => choose(node)}>
            {node}
          </button>
        </p>
      ))}
    </section>
  );
}

function Fact({ name, children }: { name: string; children: preact.ComponentChildren }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
