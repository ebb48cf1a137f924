import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { pathTo } from "./forest";
import { useLoaded } from "./hooks";
import { difference, measuresOf, range } from "./measures";
import { Select, Table } from "./parts";
import { Shaded } from "./token_panel";
import type { PanelProps } from "./tree_page";
import type { NodeCredit } from "./types";
import { short, signed } from "./words";

/** Another algorithm on the recorded tree: how S+, S-, W and the advantage of each token change. */
export function Playground(props: PanelProps): JSX.Element {
  const { source, run, forest, row, leaf } = props;
  const own = forest.tree.credit;
  const names = run.algorithms.filter((name) => name !== own?.algorithm);
  const [picked, setAlgorithm] = useState("");
  // Some need the whole batch: the first that can credit a single tree is shown until another is picked.
  const [at, setAt] = useState(0);
  const algorithm = picked || (names[at] ?? "");
  const [key, setKey] = useState("s_plus");
  const [change, setChange] = useState(true);
  const other = useLoaded(
    async () => (algorithm === "" ? null : await source.credit(row.source, row.row, algorithm)),
    [source, row.source, row.row, algorithm],
  );
  useEffect(() => {
    if (other.error !== "" && picked === "" && at + 1 < names.length) setAt(at + 1);
  }, [other.error]);
  const nodes = useMemo(() => {
    if (other.value === null) return null;
    return change ? difference(own?.nodes ?? {}, other.value.nodes) : other.value.nodes;
  }, [own, other.value, change]);
  const measures = useMemo(
    () =>
      measuresOf(forest, leaf, nodes)
        .filter((measure) => ["advantage", "s_plus", "s_minus", "weight"].includes(measure.key))
        .map((measure) =>
          change
            ? {
                ...measure,
                signed: true,
                label: `change of ${measure.label}`,
                hint: `Change: ${measure.hint}`,
              }
            : measure,
        ),
    [forest, leaf, nodes, change],
  );
  if (own === null && names.length === 0)
    return <p class="soft">This run has no algorithm that gives credit.</p>;
  const measure = measures.find((measure) => measure.key === key) ?? measures[0];
  const limits = measure === undefined ? null : range(forest, leaf, measure);
  return (
    <section aria-label="Credit of another algorithm">
      <div class="row">
        <Select
          label="Algorithm"
          value={algorithm}
          options={names.map((name) => [name, name])}
          choose={setAlgorithm}
        />
        {measure !== undefined && (
          <Select
            label="Shade by"
            value={measure.key}
            options={measures.map((measure) => [measure.key, measure.label])}
            choose={setKey}
          />
        )}
        <label class="switch">
          <input
            type="checkbox"
            checked={change}
            onChange={(event) => setChange(event.currentTarget.checked)}
          />
          Show the change against the run's own credit
        </label>
      </div>
      {other.error !== "" && (picked !== "" || at + 1 >= names.length) && (
        <p class="failure">{other.error}</p>
      )}
      {other.error === "" && other.value === null && algorithm !== "" && (
        <p class="soft">Working it out ...</p>
      )}
      {change && limits !== null && limits[0] === 0 && limits[1] === 0 && (
        <p>No token of this trajectory changes in this.</p>
      )}
      {measure !== undefined && (
        <Shaded forest={forest} leaf={leaf} node={props.node} measure={measure} measures={measures} />
      )}
      {other.value !== null && (
        <Sums {...props} own={own?.nodes ?? {}} other={other.value.nodes} name={algorithm} />
      )}
    </section>
  );
}

function Sums(
  props: PanelProps & { own: Record<string, NodeCredit>; other: Record<string, NodeCredit>; name: string },
): JSX.Element {
  const path = pathTo(props.forest, props.leaf).filter((node) => node.source === "policy");
  const sum = (credit: Record<string, NodeCredit>, id: string, key: keyof NodeCredit): number =>
    (credit[id]?.[key] ?? []).reduce((total, value) => total + value, 0);
  const keys = ["s_plus", "s_minus", "weight"] as const;
  return (
    <>
      <h3>Sums over the tokens of each node</h3>
      <Table
        label="Sums of each node on this trajectory"
        head={["Node", "S+", "changes", "S−", "changes", "W", "changes"]}
        numbers={[1, 2, 3, 4, 5, 6]}
        rows={path.map((node) => [
          <button class="link" onClick={() => props.choose(node.id)}>
            {node.id}
          </button>,
          ...keys.flatMap((key) => {
            const before = sum(props.own, node.id, key);
            return [short(before), signed(sum(props.other, node.id, key) - before)];
          }),
        ])}
      />
    </>
  );
}
