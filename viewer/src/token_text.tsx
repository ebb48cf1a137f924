import type { JSX } from "preact";
import { strength, type Measure } from "./measures";
import type { Node } from "./types";
import { breakAfter, isSpecial, short, visible } from "./words";

export interface Spot {
  node: string;
  at: number;
}

interface Props {
  nodes: Node[];
  measure?: Measure | undefined;
  range?: [number, number] | undefined;
  chosen?: Spot | undefined;
  choose?: ((spot: Spot) => void) | undefined;
}

/** Every token with its white space and the special ones in a frame; shaded by a measure if one is chosen. */
export function TokenText({ nodes, measure, range, chosen, choose }: Props): JSX.Element {
  return (
    <div class="tokens">
      {nodes.map((node) => {
        const values = measure?.values(node);
        if (node.tokens === null && measure === undefined) return <span key={node.id}>{node.text}</span>;
        return node.ids.map((id, at) => {
          const value = values?.[at] ?? null;
          const text = node.tokens?.[at] ?? `[${id}]`;
          const power = value === null || range === undefined || measure === undefined ? 0 : strength(value, range, measure);
          const here = chosen?.node === node.id && chosen.at === at;
          return [
            <span
              key={`${node.id} ${at}`}
              class={`token ${node.source} ${isSpecial(text) ? "special" : ""} ${power < 0 ? "minus" : "plus"} ${here ? "chosen" : ""}`}
              title={measure === undefined || value === null ? `id ${id}` : `${measure.label} ${short(value)}, id ${id}`}
              style={{ "--power": String(Math.abs(power)) }}
              onClick={choose === undefined ? undefined : () => choose({ node: node.id, at })}
            >
              {visible(text)}
            </span>,
            breakAfter(text),
          ];
        });
      })}
    </div>
  );
}
