import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { pathTo } from "./forest";
import { measuresOf, range, type Measure } from "./measures";
import { tokensOf } from "./parting";
import { Select } from "./parts";
import { TokenText, type Spot } from "./token_text";
import type { PanelProps } from "./tree_page";
import { short, visible } from "./words";

/** The tokens of the trajectory, shaded by a number of theirs; arrow keys go from token to token. */
export function TokenPanel({ forest, leaf, node }: PanelProps): JSX.Element {
  const measures = useMemo(() => measuresOf(forest, leaf, forest.tree.credit?.nodes ?? null), [forest, leaf]);
  const [key, setKey] = useState("logprob");
  const measure = measures.find((measure) => measure.key === key) ?? measures[0];
  if (measure === undefined) return <p class="soft">The trace holds no numbers of these tokens.</p>;
  return (
    <section aria-label="Tokens">
      <Select
        label="Shade by"
        value={measure.key}
        options={measures.map((measure) => [measure.key, measure.label])}
        choose={setKey}
      />
      <Shaded forest={forest} leaf={leaf} node={node} measure={measure} measures={measures} />
    </section>
  );
}

export function Shaded(
  props: Pick<PanelProps, "forest" | "leaf" | "node"> & { measure: Measure; measures: Measure[] },
): JSX.Element {
  const { forest, leaf, measure, measures } = props;
  const [spot, setSpot] = useState<Spot>({ node: props.node, at: 0 });
  // Another node in the tree takes the cursor along.
  useEffect(() => setSpot({ node: props.node, at: 0 }), [props.node]);
  const path = useMemo(() => pathTo(forest, leaf), [forest, leaf]);
  const tokens = useMemo(() => tokensOf(path), [path]);
  const limits = range(forest, leaf, measure);
  const index = tokens.findIndex((token) => token.node.id === spot.node && token.at === spot.at);
  const token = tokens[index];
  const move = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = tokens[index + by];
    if (by === 0 || next === undefined) return;
    event.preventDefault();
    setSpot({ node: next.node.id, at: next.at });
  };
  return (
    <>
      <p class="soft">
        {measure.hint}.{" "}
        {limits !== null && (
          <span class={`scale ${measure.signed ? "signed" : measure.key === "logprob" ? "reversed" : ""}`}>
            {short(
              measure.signed ? -Math.max(...limits.map(Math.abs)) : measure.key === "logprob" ? limits[0] : 0,
            )}{" "}
            <i />{" "}
            {short(
              measure.signed ? Math.max(...limits.map(Math.abs)) : measure.key === "logprob" ? 0 : limits[1],
            )}
          </span>
        )}
      </p>
      <div
        class="keeps-arrows"
        role="group"
        aria-label={`Tokens, shaded by ${measure.label}; arrow keys go from token to token`}
        tabIndex={0}
        onKeyDown={move}
      >
        <TokenText
          nodes={path}
          measure={measure}
          range={limits ?? undefined}
          chosen={spot}
          choose={setSpot}
        />
      </div>
      {token !== undefined && (
        <dl class="facts" aria-live="polite">
          <div>
            <dt>token</dt>
            <dd>
              <code>{visible(token.text)}</code> id {token.id}, node {token.node.id || "prompt"}
            </dd>
          </div>
          {measures.map((measure) => (
            <div key={measure.key}>
              <dt>{measure.label}</dt>
              <dd>{short(measure.values(token.node)[token.at])}</dd>
            </div>
          ))}
        </dl>
      )}
    </>
  );
}
