import type { ComponentChildren, JSX } from "preact";
import type { Row, Trajectory } from "./types";
import { percent, score } from "./words";
import { share } from "./rows";

/** A word with a frame: a flag, a status, a kind. */
export function Chip({ tone = "", children }: { tone?: string; children: ComponentChildren }): JSX.Element {
  return <span class={`chip ${tone}`}>{children}</span>;
}

/** Right trajectories of all, as a bar and in numbers. */
export function ShareBar({ row }: { row: Pick<Row, "right" | "n"> }): JSX.Element {
  return (
    <span class="share" title={`${percent(share(row))} of the trajectories are right`}>
      <span class="share-bar">
        <span class="share-right" style={{ width: `${share(row) * 100}%` }} />
      </span>
      {row.right}/{row.n}
    </span>
  );
}

export function verdict(trajectory: Pick<Trajectory, "right" | "reward">): {
  mark: string;
  word: string;
  tone: string;
} {
  const right = trajectory.right ?? trajectory.reward > 0;
  if (trajectory.right === null) return { mark: "", word: "not judged", tone: right ? "good" : "soft" };
  return right ? { mark: "✓", word: "right", tone: "good" } : { mark: "✗", word: "wrong", tone: "bad" };
}

export function Verdict({ trajectory }: { trajectory: Trajectory }): JSX.Element {
  const { mark, word, tone } = verdict(trajectory);
  return (
    <span class={`verdict ${tone}`}>
      {mark} {word}, reward {score(trajectory.reward)}
    </span>
  );
}

/** A field with its label. */
export function Field({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

export function Select(props: {
  label: string;
  value: string;
  options: [value: string, text: string][];
  choose(value: string): void;
}): JSX.Element {
  return (
    <Field label={props.label}>
      <select value={props.value} onChange={(event) => props.choose(event.currentTarget.value)}>
        {props.options.map(([value, text]) => (
          <option key={value} value={value} selected={value === props.value}>
            {text}
          </option>
        ))}
      </select>
    </Field>
  );
}

export function Key({ children }: { children: string }): JSX.Element {
  return <kbd>{children}</kbd>;
}

export type Cell = ComponentChildren;

/** A plain table; columns in `numbers` are right-aligned. A table wider than its room scrolls by itself. */
export function Table(props: {
  label: string;
  head: string[];
  rows: Cell[][];
  numbers?: number[];
}): JSX.Element {
  const tone = (at: number): string => (props.numbers?.includes(at) === true ? "number" : "");
  return (
    <div class="scroll" role="group" aria-label={props.label} tabIndex={0}>
      <table>
        {props.head.length > 0 && (
          <thead>
            <tr>
              {props.head.map((text, at) => (
                <th key={at} scope="col" class={tone(at)}>
                  {text}
                </th>
              ))}
            </tr>
          </thead>
        )}
        <tbody>
          {props.rows.map((cells, row) => (
            <tr key={row}>
              {cells.map((cell, at) => (
                <td key={at} class={tone(at)}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
