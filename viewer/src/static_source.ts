import { readRows } from "./rows";
import { Recent, type Source } from "./source";
import type { Credit, Hit, Index, Occurrence, Row, Run, Tree } from "./types";

const BLOCKS_IN_MEMORY = 12;
const PLAIN = /^[\w .,:;!?()+*=/{}[\]-]*$/;

interface Block {
  element: Element;
  source: string;
  first: number;
}

/** The data blocks of a page that was written with `--out`: trees are unpacked a block at a time. */
export class StaticSource implements Source {
  private readonly data: Run;
  private readonly indexes: Map<string, Index>;
  private readonly blocks: Block[];
  private readonly unpacked = new Recent<Tree[]>(BLOCKS_IN_MEMORY);
  private rows: Row[] | null = null;

  constructor(document: Document) {
    this.data = JSON.parse(textOf(document, "run")) as Run;
    const indexes = JSON.parse(textOf(document, "index")) as Index[];
    this.indexes = new Map(indexes.map((index) => [index.source, index]));
    this.blocks = [...document.querySelectorAll("script[data-source]")].map((element) => ({
      element,
      source: element.getAttribute("data-source") ?? "",
      first: Number(element.getAttribute("data-first")),
    }));
  }

  async run(): Promise<Run> {
    return this.data;
  }

  async index(id: string): Promise<Index> {
    return this.indexes.get(id) ?? { source: id, rows: [] };
  }

  async tree(id: string, row: number): Promise<Tree> {
    const block = this.blocks.findLast((block) => block.source === id && block.first <= row);
    const trees = block === undefined ? [] : await this.unpack(block);
    const tree = trees.find((tree) => tree.row === row);
    if (tree === undefined) throw new Error(`This page holds no tree ${row} of ${id}.`);
    return tree;
  }

  async search(text: string, progress: (share: number) => void, signal: AbortSignal): Promise<Hit[]> {
    const hits: Hit[] = [];
    for (const [done, block] of this.blocks.entries()) {
      if (signal.aborted) return hits;
      progress(done / this.blocks.length);
      const json = await unpackText(block.element);
      // Most blocks hold no such text: they need not be parsed, if JSON writes it as it is.
      if (PLAIN.test(text) && !json.toLowerCase().includes(text.toLowerCase())) continue;
      for (const tree of JSON.parse(json) as Tree[]) {
        const where = firstMatch(tree, text);
        if (where !== null) hits.push([tree.source, tree.row, where]);
      }
    }
    return hits;
  }

  async credit(id: string, row: number, algorithm: string): Promise<Credit> {
    const tree = await this.tree(id, row);
    const nodes = tree.credits?.[algorithm];
    if (nodes === undefined)
      throw new Error(
        "This file holds the credit of the run's own algorithm only. Use ramify view RUN --serve.",
      );
    return { algorithm, nodes };
  }

  async problem(id: string): Promise<Occurrence[]> {
    this.rows ??= [...this.indexes.values()].flatMap((index) => readRows(this.data, index));
    return this.rows
      .filter((row) => row.problem === id)
      .map((row) => [row.source, row.row, row.mean, row.right, row.n]);
  }

  private unpack(block: Block): Promise<Tree[]> {
    return this.unpacked.get(`${block.source} ${block.first}`, () => unpackBlock(block.element));
  }
}

function textOf(document: Document, id: string): string {
  return document.getElementById(id)?.textContent ?? "null";
}

/** Base64 of gzip of a JSON list of trees. */
async function unpackText(element: Element): Promise<string> {
  const letters = atob((element.textContent ?? "").trim());
  const packed = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) packed[at] = letters.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function unpackBlock(element: Element): Promise<Tree[]> {
  return JSON.parse(await unpackText(element)) as Tree[];
}

/** The id of the first node whose text holds `text`, whatever the case. */
export function firstMatch(tree: Tree, text: string): string | null {
  const wanted = text.toLowerCase();
  return tree.nodes.find((node) => node.text.toLowerCase().includes(wanted))?.id ?? null;
}
