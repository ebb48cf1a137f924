/** What the address says behind #: the page that is open, so that a copied address opens the same. */
export interface Route {
  view: "trees" | "failures" | "problems" | "run" | "tree";
  source: string;
  step: number | null;
  row: number;
  node: string;
  panel: string;
  problem: string;
}

export const HOME: Route = {
  view: "trees",
  source: "",
  step: null,
  row: 0,
  node: "",
  panel: "",
  problem: "",
};

const VIEWS = ["failures", "problems", "run"] as const;

/** #step=12&tree=0/0.0.1, with source= where a step has several; or #view=failures. */
export function parseRoute(hash: string): Route {
  const values = new Map(
    hash
      .replace(/^#/, "")
      .split("&")
      .map((part): [string, string] => {
        const at = part.indexOf("=");
        return at < 0 ? [part, ""] : [part.slice(0, at), decode(part.slice(at + 1))];
      }),
  );
  const tree = values.get("tree");
  if (tree !== undefined) {
    const [row, ...rest] = tree.split("/");
    const step = values.get("step");
    return {
      ...HOME,
      view: "tree",
      source: values.get("source") ?? "",
      step: step === undefined ? null : Number(step),
      row: Number(row) || 0,
      node: rest.join("/"),
      panel: values.get("panel") ?? "",
    };
  }
  const view = VIEWS.find((name) => name === values.get("view"));
  return { ...HOME, view: view ?? "trees", problem: values.get("problem") ?? "" };
}

export function formatRoute(route: Route): string {
  if (route.view !== "tree") {
    const problem = route.problem === "" ? "" : `&problem=${encodeURIComponent(route.problem)}`;
    return route.view === "trees" ? "#" : `#view=${route.view}${problem}`;
  }
  const parts = [
    route.step === null ? "" : `step=${route.step}`,
    `tree=${route.row}/${encodeURI(route.node).replaceAll("&", "%26").replaceAll("#", "%23")}`,
    route.source === "" ? "" : `source=${encodeURIComponent(route.source)}`,
    route.panel === "" ? "" : `panel=${encodeURIComponent(route.panel)}`,
  ];
  return `#${parts.filter((part) => part !== "").join("&")}`;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
