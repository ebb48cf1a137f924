import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { strength, type Measure } from "./measures";
import type { Node } from "./types";
import { breakAfter, isSpecial, plural, short, visible } from "./words";

/** Tokens of a node that are shown at once: a browser takes long over more. */
const SHOWN = 4000;

export interface Spot {
  node: string;
  at: number;
}

interface Shading {
  measure?: Measure | undefined;
  range?: [number, number] | undefined;
  choose?: ((spot: Spot) => void) | undefined;
}

/** Every token with its white space and the special ones in a frame; shaded by a measure if one is chosen. */
export function TokenText({
  nodes,
  chosen,
  ...shading
}: Shading & { nodes: Node[]; chosen?: Spot }): JSX.Element {
  return (
    <div class="tokens">
      {nodes.map((node) => (
        <NodeTokens
          key={node.id}
          node={node}
          chosen={chosen?.node === node.id ? chosen.at : -1}
          {...shading}
        />
      ))}
    </div>
  );
}

function NodeTokens({
  node,
  chosen,
  measure,
  range,
  choose,
}: Shading & { node: Node; chosen: number }): JSX.Element {
  const [all, setAll] = useState(false);
  const count = all ? node.ids.length : Math.min(node.ids.length, Math.max(SHOWN, chosen + 1));
  // The same elements as before are not compared again: a step of the cursor touches two nodes at most.
  return useMemo(() => {
    if (node.tokens === null && measure === undefined) return <span>{node.text}</span>;
    const values = measure?.values(node);
    return (
      <>
        {node.ids.slice(0, count).map((id, at) => {
          const value = values?.[at] ?? null;
          const text = node.tokens?.[at] ?? `[${id}]`;
          const power =
            value === null || range === undefined || measure === undefined
              ? 0
              : strength(value, range, measure);
          return [
            <span
              class={`token ${node.source} ${isSpecial(text) ? "special" : ""} ${power < 0 ? "minus" : "plus"} ${at === chosen ? "chosen" : ""}`}
              title={
                measure === undefined || value === null
                  ? `id ${id}`
                  : `${measure.label} ${short(value)}, id ${id}`
              }
              style={{ "--power": String(Math.abs(power)) }}
              onClick={choose === undefined ? undefined : () => choose({ node: node.id, at })}
            >
              {visible(text)}
            </span>,
            breakAfter(text),
          ];
        })}
        {count < node.ids.length && (
          <button class="link" onClick={() => setAll(true)}>
            {plural(node.ids.length - count, "more token")}
          </button>
        )}
      </>
    );
  }, [node, measure, range?.[0], range?.[1], chosen, count]);
}
