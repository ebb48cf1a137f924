import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { pathTo, type Forest } from "./forest";
import { useSize } from "./hooks";
import { argumentsText, nodeLabel } from "./node_text";
import { Chip, Table } from "./parts";
import type { PanelProps } from "./tree_page";
import type { Node, Time } from "./types";
import { clip, seconds } from "./words";

interface Event {
  node: Node;
  label: string;
  kind: "turn" | "call";
  status: string;
  time: Time;
}

const SLOWEST = 6;
const LABEL = 150;
const ROW = 22;

/** When each turn and call ran, and the slowest ones. */
export function TimeLine({ forest, leaf, node, choose }: PanelProps): JSX.Element {
  const [whole, setWhole] = useState(false);
  const events = useMemo(() => eventsOf(forest, forest.tree.nodes), [forest]);
  const own = useMemo(() => eventsOf(forest, pathTo(forest, leaf)), [forest, leaf]);
  if (events.length === 0) return <p class="soft">The run recorded no times.</p>;
  return (
    <section aria-label="Time line">
      <label class="switch">
        <input type="checkbox" checked={whole} onChange={(event) => setWhole(event.currentTarget.checked)} />
        The whole tree
      </label>
      <Bars events={whole ? events : own} node={node} choose={choose} />
      {(["call", "turn"] as const).map((kind) => (
        <Slowest
          key={kind}
          events={events.filter((event) => event.kind === kind)}
          kind={kind}
          choose={choose}
        />
      ))}
    </section>
  );
}

function Slowest(props: { events: Event[]; kind: string; choose(node: string): void }): JSX.Element {
  const slowest = [...props.events].sort((a, b) => b.time.seconds - a.time.seconds).slice(0, SLOWEST);
  return (
    <>
      <h3>{`Slowest ${props.kind}s of the whole tree`}</h3>
      <Table
        label={`Slowest ${props.kind}s`}
        head={["Text", "Node", "Time", "Queued", "Begins", "Notes"]}
        numbers={[2, 3, 4]}
        rows={slowest.map((event) => [
          clip(event.label, 50),
          <button class="link" onClick={() => props.choose(event.node.id)}>
            {event.node.id}
          </button>,
          seconds(event.time.seconds),
          seconds(event.time.queued),
          seconds(event.time.begin),
          <Notes event={event} />,
        ])}
      />
    </>
  );
}

function Notes({ event }: { event: Event }): JSX.Element {
  const { cached, issued } = event.time;
  return (
    <>
      {cached === true && <Chip>from the cache</Chip>}
      {issued !== null && issued > 1 && <Chip>issued {issued} times</Chip>}
      {event.status !== "" && event.status !== "ok" && <Chip tone="bad">{event.status}</Chip>}
    </>
  );
}

function Bars({
  events,
  node,
  choose,
}: {
  events: Event[];
  node: string;
  choose(node: string): void;
}): JSX.Element {
  const [box, size] = useSize<HTMLDivElement>();
  const width = Math.max(280, size.width);
  const timed = events.some(({ time }) => time.begin !== null);
  const begin = Math.min(...events.map(({ time }) => time.begin ?? 0));
  const end = Math.max(...events.map(({ time }) => (time.begin ?? 0) + time.seconds));
  const x = (at: number): number => LABEL + ((at - begin) / (end - begin || 1)) * (width - LABEL - 62);
  return (
    <div ref={box} class="bars">
      <svg
        width={width}
        height={events.length * ROW + 22}
        role="img"
        aria-label={`Time line of ${events.length} turns and calls, ${seconds(end - begin)} in all`}
      >
        <text class="grid" x={LABEL} y={12}>
          {seconds(begin)}
        </text>
        <text class="grid" x={width - 62} y={12} text-anchor="end">
          {seconds(end)}
        </text>
        {events.map((event, at) => {
          const y = 20 + at * ROW;
          const { time } = event;
          const from = time.begin ?? 0;
          const queued = Math.min(time.queued, time.seconds);
          return (
            <g
              key={at}
              class={`bar ${event.kind} ${event.node.id === node ? "chosen" : ""}`}
              onClick={() => choose(event.node.id)}
            >
              <title>{`${event.label}: ${seconds(time.seconds)}, queued ${seconds(time.queued)}, node ${event.node.id}`}</title>
              <text x={0} y={y + 12}>
                {clip(event.label, 22)}
              </text>
              <rect
                class="queue"
                x={x(from)}
                y={y + 2}
                width={Math.max(0, x(from + queued) - x(from))}
                height={13}
              />
              <rect
                x={x(from + queued)}
                y={y + 2}
                width={Math.max(2, x(from + time.seconds) - x(from + queued))}
                height={13}
              />
              <text x={x(from + time.seconds) + 5} y={y + 12}>
                {seconds(time.seconds)}
                {time.cached === true ? " cache" : ""}
              </text>
            </g>
          );
        })}
      </svg>
      <p class="soft">
        {timed
          ? "Counted from the beginning of the step."
          : "The run recorded lengths only, not when turns and calls began."}{" "}
        The pale part of a bar waits in a queue.
      </p>
    </div>
  );
}

function eventsOf(forest: Forest, nodes: Node[]): Event[] {
  return nodes.flatMap((node) => {
    const above = node.parent === null ? undefined : forest.byId.get(node.parent);
    const turn: Event[] =
      node.time === null ? [] : [{ node, label: nodeLabel(node), kind: "turn", status: "", time: node.time }];
    const calls = node.calls_time.flatMap((time, at): Event[] => {
      const call = above?.turn?.calls[at];
      const label = call === undefined ? "call" : `${call.name} ${clip(argumentsText(call.arguments), 60)}`;
      return time === null
        ? []
        : [{ node, label, kind: "call", status: node.results[at]?.status ?? "", time }];
    });
    return [...turn, ...calls];
  });
}
