import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { layOut, pathTo, type Forest, type Spot } from "./forest";
import { useSize } from "./hooks";
import { nodeLabel, nodeText, shortLabel } from "./node_text";
import { verdict } from "./parts";
import type { Decision, Node, Trajectory } from "./types";
import { clip, percent, score, short, signed } from "./words";

const ROW = 25;
const ROW_DENSE = 17;
const DENSE = 32;
const LEFT = 14;
const LABEL = 128;
const CHARACTER = 6.1;
const ANSWER = 18;
const READABLE = 9;

interface Props {
  forest: Forest;
  node: string;
  leaf: string;
  choose(node: string): void;
}

/** The whole tree: color and shape are the reward, width is the share of trajectories, marks are branch decisions. */
export function TreeView({ forest, node, leaf, choose }: Props): JSX.Element {
  const [box, size] = useSize<HTMLDivElement>();
  const [pointed, setPointed] = useState<string | null>(null);
  const { spots, rows } = useMemo(() => layOut(forest), [forest]);
  const path = useMemo(() => new Set(pathTo(forest, leaf).map((node) => node.id)), [forest, leaf]);
  const row = rows > DENSE ? ROW_DENSE : ROW;
  const width = Math.max(size.width, 300);
  const gap = useMemo(
    () =>
      Math.min(140, ...spots.map((spot) => (width - LEFT - room(forest, spot)) / Math.max(1, spot.depth))),
    [forest, spots, width],
  );
  const x = (spot: Spot): number => LEFT + spot.depth * gap;
  const y = (spot: Spot): number => 22 + spot.row * row;
  const byId = useMemo(() => new Map(spots.map((spot, at) => [spot.node.id, { spot, at }])), [spots]);
  const chosen = byId.get(node);
  useEffect(() => {
    document.getElementById(`node-${chosen?.at}`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [chosen?.at]);
  const hint = pointed === null ? undefined : byId.get(pointed)?.spot;
  return (
    <div ref={box} class="tree">
      <svg
        width={width}
        height={22 + rows * row}
        role="tree"
        aria-label="Tree of this problem"
        aria-activedescendant={chosen === undefined ? undefined : `node-${chosen.at}`}
        tabIndex={0}
        onMouseLeave={() => setPointed(null)}
      >
        <g role="presentation">
          {spots.map((spot) => {
            const above = byId.get(spot.node.parent ?? "")?.spot;
            if (above === undefined || above === spot) return null;
            // The last part of an edge is level: the label of its node stands on it.
            const [begin, bend] = [x(above), x(above) + Math.min(gap * 0.25, 24)];
            const d = `M${begin},${y(above)}C${bend},${y(above)} ${begin},${y(spot)} ${bend},${y(spot)}H${x(spot)}`;
            const tone = toneOf(forest.reward.get(spot.node.id) ?? null);
            return (
              <path
                key={spot.node.id}
                d={d}
                class={`edge ${tone} ${path.has(spot.node.id) ? "on-path" : ""} ${spot.node.context === "parent" ? "" : "new-context"}`}
                style={{ strokeWidth: `${1.2 + 6 * spot.node.mass}px` }}
              />
            );
          })}
        </g>
        {spots.map((spot, at) => (
          <Mark
            key={spot.node.id}
            {...{
              forest,
              spot,
              at,
              gap,
              x: x(spot),
              y: y(spot),
              chosen: spot.node.id === node,
              onPath: path.has(spot.node.id),
            }}
            point={() => setPointed(spot.node.id)}
            choose={() => choose(spot.node.id)}
          />
        ))}
      </svg>
      {hint !== undefined && <Hint forest={forest} node={hint.node} x={x(hint)} y={y(hint)} width={width} />}
      <Legend />
    </div>
  );
}

function Mark(props: {
  forest: Forest;
  spot: Spot;
  at: number;
  gap: number;
  x: number;
  y: number;
  chosen: boolean;
  onPath: boolean;
  point(): void;
  choose(): void;
}): JSX.Element {
  const { forest, spot, x, y } = props;
  const { node } = spot;
  const trajectory = forest.trajectories.get(node.id);
  const tone = toneOf(forest.reward.get(node.id) ?? null);
  const letters = Math.floor((props.gap - 24) / CHARACTER);
  const classes = `node ${tone} ${props.chosen ? "chosen" : ""} ${props.onPath ? "on-path" : ""}`;
  const left = Math.min(props.gap / 2, 40);
  return (
    <>
      <g
        id={`node-${props.at}`}
        role="treeitem"
        aria-level={spot.depth + 1}
        aria-selected={props.chosen}
        aria-label={spoken(forest, node, trajectory)}
        class={classes}
        onClick={props.choose}
        onMouseEnter={props.point}
      >
        <rect
          class="hit"
          x={x - left}
          y={y - 11}
          width={left + (trajectory === undefined ? 14 : LABEL)}
          height={22}
        />
        {props.chosen && <circle class="ring" cx={x} cy={y} r={10} />}
        <Shape node={node} x={x} y={y} />
        {(forest.decisions.get(node.id) ?? []).slice(0, 3).map((decision, at) => (
          <DecisionMark key={at} decision={decision} x={x + at * 9} y={y + 10} />
        ))}
      </g>
      {/* The item's own name says more than these shortened texts. */}
      <g class={`${classes} texts`} aria-hidden="true">
        {spot.depth > 0 && trajectory === undefined && (
          <text class="label" x={x - 9} y={y - 5} text-anchor="end">
            {letters >= READABLE ? clip(nodeLabel(node), letters) : shortLabel(node, letters)}
          </text>
        )}
        {trajectory !== undefined && (
          <text class="leaf" x={x + 12} y={y + 4}>
            <tspan class="score">{leafText(trajectory)[0]}</tspan>{" "}
            <tspan dx={4}>{leafText(trajectory)[1]}</tspan>
          </text>
        )}
      </g>
    </>
  );
}

/** Circle: turn. Square: results. Triangle: malformed turn. Cross: a call failed. */
function Shape({ node, x, y }: { node: Node; x: number; y: number }): JSX.Element {
  const failed = node.results.some((result) => result.status !== "ok" && result.status !== "empty");
  if (node.source === "prompt")
    return <rect class="shape prompt" x={x - 6} y={y - 6} width={12} height={12} rx={3} />;
  if (node.turn?.kind === "malformed") return <path class="shape" d={`M${x},${y - 7}l7,12h-14z`} />;
  if (failed) return <path class="shape failed" d={`M${x - 5},${y - 5}l10,10m0,-10l-10,10`} />;
  if (node.source === "tool") return <rect class="shape" x={x - 4} y={y - 4} width={8} height={8} />;
  return <circle class="shape" cx={x} cy={y} r={5} />;
}

function DecisionMark({ decision, x, y }: { decision: Decision; x: number; y: number }): JSX.Element {
  const tone =
    decision.outcome === "granted" ? "granted" : decision.outcome === "no budget" ? "no-budget" : "refused";
  return (
    <path
      class={`decision ${tone} ${decision.entropy_acted ? "flipped" : ""}`}
      d={`M${x},${y - 5}l4,5l-4,5l-4,-5z`}
    />
  );
}

function Hint(props: { forest: Forest; node: Node; x: number; y: number; width: number }): JSX.Element {
  const { forest, node } = props;
  const left = Math.max(0, Math.min(props.x - 40, props.width - 330));
  return (
    <div class="hint" style={{ left: `${left}px`, top: `${props.y + 16}px` }}>
      <p class="soft">
        {node.id === "" ? "prompt" : node.id}, {percent(node.mass)} of the trajectories, mean reward{" "}
        {short(forest.reward.get(node.id))}
        {node.entropy !== null && `, H ${short((node.entropy.lower + node.entropy.upper) / 2)}`}
      </p>
      <p class="text">{nodeText(node).slice(0, 500)}</p>
      {(forest.decisions.get(node.id) ?? []).map((decision, at) => (
        <p key={at}>
          Branch {decision.outcome}: ΔH {signed(decision.entropy_delta)}, P {short(decision.probability)},
          draw {short(decision.draw)}
        </p>
      ))}
    </div>
  );
}

function Legend(): JSX.Element {
  return (
    <p class="tree-legend soft">
      <span class="key good">● high reward</span>
      <span class="key bad">● low reward</span>
      <span>width: share of trajectories</span>
      <span>■ result</span>
      <span>▲ malformed turn</span>
      <span>✕ failed call</span>
      <span>◆ branch granted</span>
      <span>◇ refused</span>
      <span>◌ no budget</span>
      <span class="key flip">◆ flipped by entropy</span>
    </p>
  );
}

/** Five colors from orange (low) over gray to blue (high): rewards above 1 count as 1, below 0 as 0. */
function toneOf(reward: number | null): string {
  if (reward === null) return "tone-none";
  return `tone-${Math.round(Math.max(0, Math.min(1, reward)) * 4)}`;
}

/** Verdict and reward; the answer, or why there is none. */
function leafText(trajectory: Trajectory): [string, string] {
  const end =
    trajectory.stop === "answered" || trajectory.stop === "ended" ? trajectory.answer : trajectory.stop;
  return [`${verdict(trajectory).mark} ${score(trajectory.reward)}`.trim(), clip(end, ANSWER)];
}

/** Pixels right of a node: of the text behind a leaf, and of a decision's marks. */
function room(forest: Forest, spot: Spot): number {
  const trajectory = forest.trajectories.get(spot.node.id);
  return trajectory === undefined ? 40 : 86 + leafText(trajectory)[1].length * 6.8;
}

function spoken(forest: Forest, node: Node, trajectory: Trajectory | undefined): string {
  const decisions = (forest.decisions.get(node.id) ?? [])
    .map((decision) => `, branch ${decision.outcome}`)
    .join("");
  if (trajectory === undefined) return `${nodeLabel(node)}${decisions}`;
  // Begins with the text that stands there, so that one can say it to choose the node.
  return `${leafText(trajectory).join(" ")}: ${verdict(trajectory).word}, ${nodeLabel(node)}${decisions}`;
}
