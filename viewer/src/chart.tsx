import type { JSX } from "preact";
import { useSize } from "./hooks";
import { short } from "./words";

export interface Line {
  name: string;
  points: [number, number][];
}

const HEIGHT = 150;
const LEFT = 46;
const BOTTOM = 22;
const TOP = 10;
const RIGHT = 12;

/** Lines over steps. One color and dash a line; each point can be read by hovering, and the text says the ends. */
export function Chart(props: { title: string; lines: Line[]; dots?: boolean; low?: number }): JSX.Element {
  const [box, size] = useSize<HTMLElement>();
  const points = props.lines.flatMap((line) => line.points);
  const width = Math.max(240, size.width - 24);
  const [x0, x1] = ends(points.map(([step]) => step));
  const [low, high] = ends([
    ...points.map(([, value]) => value),
    ...(props.low === undefined ? [] : [props.low]),
  ]);
  const x = (step: number): number => LEFT + ((step - x0) / (x1 - x0 || 1)) * (width - LEFT - RIGHT);
  const y = (value: number): number =>
    TOP + (1 - (value - low) / (high - low || 1)) * (HEIGHT - TOP - BOTTOM);
  return (
    <figure ref={box} class="chart">
      <figcaption>
        {props.title}
        {props.lines.length > 1 &&
          props.lines.map((line, at) => (
            <span key={line.name} class={`legend line-${at % 4}`}>
              {line.name}
            </span>
          ))}
        {points.length > 1 && <span class="soft peak">{peak(points)}</span>}
      </figcaption>
      <svg
        width={width}
        height={HEIGHT}
        role="img"
        aria-label={`${props.title}: ${props.lines.map(spoken).join("; ")}`}
      >
        {[low, high].map((value, at) => (
          <g key={at} class="grid">
            <line x1={LEFT} x2={width - RIGHT} y1={y(value)} y2={y(value)} />
            <text x={LEFT - 6} y={y(value) + 4} text-anchor="end">
              {short(value)}
            </text>
          </g>
        ))}
        <text class="grid" x={LEFT} y={HEIGHT - 4}>
          {short(x0)}
        </text>
        <text class="grid" x={width - RIGHT} y={HEIGHT - 4} text-anchor="end">
          {short(x1)}
        </text>
        {props.lines.map((line, at) => (
          <g key={line.name} class={`line-${at % 4}`}>
            <polyline points={line.points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ")} />
            {line.points.map(([step, value]) => (
              <circle
                key={step}
                cx={x(step)}
                cy={y(value)}
                r={props.dots === true || line.points.length === 1 ? 3 : 6}
                class={props.dots === true || line.points.length === 1 ? "dot" : "spot"}
              >
                <title>{`step ${step}: ${short(value)}`}</title>
              </circle>
            ))}
          </g>
        ))}
      </svg>
    </figure>
  );
}

function ends(values: number[]): [number, number] {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (!Number.isFinite(low)) return [0, 1];
  return low === high ? [low === 0 ? 0 : Math.min(0, low), Math.max(high, low === 0 ? 1 : 0)] : [low, high];
}

function peak(points: [number, number][]): string {
  const [step, value] = points.reduce((best, point) => (point[1] > best[1] ? point : best));
  return `highest ${short(value)} at step ${short(step)}`;
}

function spoken(line: Line): string {
  const [first, last] = [line.points[0], line.points.at(-1)];
  if (first === undefined || last === undefined) return `${line.name}, no points`;
  return `${line.name} from ${short(first[1])} at step ${first[0]} to ${short(last[1])} at step ${last[0]}`;
}
