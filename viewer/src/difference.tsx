import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { partner, partOf, type Token } from "./parting";
import { Select, Verdict, verdict } from "./parts";
import type { PanelProps } from "./tree_page";
import { breakAfter, isSpecial, plural, score, short, visible } from "./words";

const BEFORE = 12;
const BEHIND = 2000;

/** Two trajectories side by side from the first token at which they part. */
export function Difference({ forest, leaf, choose }: PanelProps): JSX.Element {
  const [picked, setPicked] = useState("");
  const other = picked !== leaf && forest.trajectories.has(picked) ? picked : partner(forest, leaf);
  const parting = useMemo(() => (other === null ? null : partOf(forest, leaf, other)), [forest, leaf, other]);
  if (other === null || parting === null) return <p class="soft">The tree has one trajectory only.</p>;
  const options = forest.tree.trajectories
    .filter((trajectory) => trajectory.leaf !== leaf)
    .map((trajectory): [string, string] => [
      trajectory.leaf,
      `${trajectory.leaf} ${verdict(trajectory).mark} ${score(trajectory.reward)} ${trajectory.answer}`.slice(
        0,
        60,
      ),
    ]);
  const [left, right] = [parting.left[parting.shared], parting.right[parting.shared]];
  return (
    <section aria-label="Difference">
      <Select label="Compare with" value={other} options={options} choose={setPicked} />
      <p>
        Both share {plural(parting.shared, "token")}.{" "}
        {left === undefined && right === undefined ? "They are equal." : "Then they part:"}
      </p>
      <div class="sides">
        {[
          { leaf, tokens: parting.left, first: left },
          { leaf: other, tokens: parting.right, first: right },
        ].map((side) => {
          const trajectory = forest.trajectories.get(side.leaf);
          return (
            <article key={side.leaf}>
              <h3>
                <button class="link" onClick={() => choose(side.leaf)}>
                  {side.leaf}
                </button>{" "}
                {trajectory !== undefined && <Verdict trajectory={trajectory} />}
              </h3>
              <First token={side.first} />
              <Rest tokens={side.tokens} shared={parting.shared} />
            </article>
          );
        })}
      </div>
    </section>
  );
}

function First({ token }: { token: Token | undefined }): JSX.Element {
  if (token === undefined) return <p class="soft">ends here</p>;
  const [logprob, entropy] = [token.node.logprobs[token.at], token.node.entropies[token.at]];
  return (
    <p>
      first different token <code class="first">{visible(token.text)}</code>{" "}
      <span class="soft">
        in {token.node.id || "the prompt"}
        {logprob === undefined ? "" : `, probability ${short(Math.exp(logprob))}`}
        {entropy === undefined ? "" : `, entropy ${short(entropy)}`}
      </span>
    </p>
  );
}

function Rest({ tokens, shared }: { tokens: Token[]; shared: number }): JSX.Element {
  return (
    <div class="tokens">
      {shared > BEFORE && <span class="soft">… </span>}
      {tokens.slice(Math.max(0, shared - BEFORE), shared + BEHIND).map((token, at) => {
        const index = Math.max(0, shared - BEFORE) + at;
        const tone = index < shared ? "shared" : index === shared ? "first" : "";
        return [
          <span
            key={index}
            class={`token ${token.node.source} ${tone} ${isSpecial(token.text) ? "special" : ""}`}
          >
            {visible(token.text)}
          </span>,
          breakAfter(token.text),
        ];
      })}
      {tokens.length > shared + BEHIND && (
        <span class="soft"> … {plural(tokens.length - shared - BEHIND, "more token")}</span>
      )}
    </div>
  );
}
