import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Open } from "./app";
import { Commands } from "./commands";
import { Conversation } from "./conversation";
import { Costs } from "./costs";
import { Decisions } from "./decisions";
import { Difference } from "./difference";
import { growForest, leafBelow, walk, type Direction, type Forest } from "./forest";
import { History } from "./history";
import { useKeys, useLoaded } from "./hooks";
import { Playground } from "./playground";
import type { Route } from "./route";
import { hasSteps, runName } from "./rows";
import type { Source } from "./source";
import { TimeLine } from "./time_line";
import { TokenPanel } from "./token_panel";
import { TreeView } from "./tree_view";
import type { Row, Run } from "./types";
import { VerdictCard } from "./verdict_card";
import { plural, short } from "./words";

interface Props {
  source: Source;
  run: Run;
  row: Row;
  rows: Row[];
  route: Route;
  go(change: Partial<Route>, replace?: boolean): void;
  open: Open;
  step(by: number): void;
  at: number;
  total: number;
}

/** What every panel of a tree gets. */
export interface PanelProps extends Props {
  forest: Forest;
  node: string;
  leaf: string;
  raw: boolean;
  setRaw(raw: boolean): void;
  choose(node: string): void;
}

const PANELS: [panel: string, label: string, key: string, part: (props: PanelProps) => JSX.Element][] = [
  ["conversation", "Conversation", "c", Conversation],
  ["tokens", "Tokens", "t", TokenPanel],
  ["difference", "Difference", "d", Difference],
  ["decisions", "Decisions", "i", Decisions],
  ["time", "Time", "l", TimeLine],
  ["usage", "Usage", "u", Costs],
  ["credit", "Credit", "p", Playground],
  ["history", "History", "h", History],
  ["commands", "Commands", "x", Commands],
];

export function TreePage(props: Props): JSX.Element {
  const { source, row } = props;
  const { value, error } = useLoaded(
    // The row comes with its tree: until the next tree is there, the page shows this one with its own heading.
    async () => ({ row, forest: growForest(await source.tree(row.source, row.row)) }),
    [source, row.source, row.row],
  );
  if (error !== "") return <p class="loading">{error}</p>;
  if (value === null) return <p class="loading">Reading the tree ...</p>;
  return <Opened {...props} {...value} />;
}

function Opened(props: Props & { forest: Forest }): JSX.Element {
  const { forest, route, go, row, run } = props;
  const [raw, setRaw] = useState(false);
  const node = forest.byId.has(route.node) ? route.node : forest.root.id;
  // The trajectory stays while one walks up its path: a node of it shows the same leaf.
  const last = useRef<string | null>(null);
  const before = last.current;
  const leaf =
    before !== null && forest.trajectories.has(before) && isAbove(forest, node, before)
      ? before
      : leafBelow(forest, node);
  useEffect(() => {
    last.current = leaf;
  }, [leaf]);
  const choose = (node: string): void => go({ node }, true);
  const panel = PANELS.find(([name]) => name === route.panel) ?? PANELS[0];
  const walkTo = (direction: Direction) => () => {
    if (direction === "child" && leaf !== node) {
      const below = (forest.children.get(node) ?? []).find((child) => isAbove(forest, child.id, leaf));
      choose(below?.id ?? walk(forest, node, direction));
    } else choose(walk(forest, node, direction));
  };
  useKeys({
    ArrowLeft: walkTo("parent"),
    ArrowRight: walkTo("child"),
    ArrowUp: walkTo("previous"),
    ArrowDown: walkTo("next"),
    r: () => setRaw((raw) => !raw),
    ...Object.fromEntries(PANELS.map(([name, , key]) => [key, () => go({ panel: name }, true)])),
  });
  if (panel === undefined) return <p />;
  const Part = panel[3];
  const shared = { ...props, node, leaf, raw, setRaw, choose };
  return (
    <div class="tree-page">
      <div class="tree-head">
        <div>
          <h2>{row.question || row.problem}</h2>
          <p class="soft">
            {[
              row.problem,
              row.kind,
              run.runs.length > 1 ? runName(run, row.run) : "",
              hasSteps(run) ? `step ${row.step}` : "",
              plural(row.n, "trajectory", "trajectories"),
              `${row.right} right`,
              `mean reward ${short(row.mean)}`,
            ]
              .filter(Boolean)
              .join(", ")}
          </p>
        </div>
        <div class="steps">
          <button onClick={() => props.step(-1)} disabled={props.at <= 0}>
            Tree before <kbd>b</kbd>
          </button>
          <button onClick={() => props.step(1)} disabled={props.at < 0 || props.at + 1 >= props.total}>
            Next tree <kbd>n</kbd>
          </button>
        </div>
      </div>
      <div class="tree-left">
        <TreeView forest={forest} node={node} leaf={leaf} choose={choose} />
        <VerdictCard {...shared} />
      </div>
      <div class="tree-right">
        <Tabs chosen={panel[0]} choose={(panel) => go({ panel }, true)} />
        <div id="panel" role="tabpanel" aria-labelledby={`tab-${panel[0]}`} tabIndex={0}>
          <Part {...shared} />
        </div>
      </div>
    </div>
  );
}

function Tabs({ chosen, choose }: { chosen: string; choose(panel: string): void }): JSX.Element {
  const at = PANELS.findIndex(([name]) => name === chosen);
  const move = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = PANELS[(at + by + PANELS.length) % PANELS.length];
    if (by === 0 || next === undefined) return;
    event.preventDefault();
    choose(next[0]);
    document.getElementById(`tab-${next[0]}`)?.focus();
  };
  return (
    <div role="tablist" aria-label="About this trajectory" onKeyDown={move}>
      {PANELS.map(([name, label, key]) => (
        <button
          key={name}
          id={`tab-${name}`}
          role="tab"
          title={`Key ${key}`}
          aria-selected={name === chosen}
          aria-controls="panel"
          tabIndex={name === chosen ? 0 : -1}
          onClick={() => choose(name)}
        >
          {label}
        </button>
      ))}
    </div>
  );
}

function isAbove(forest: Forest, node: string, leaf: string): boolean {
  for (
    let at = forest.byId.get(leaf);
    at !== undefined;
    at = at.parent === null ? undefined : forest.byId.get(at.parent)
  )
    if (at.id === node) return true;
  return false;
}
