import type { Credit, Hit, Index, Occurrence, Run, Tree } from "./types";

/** Where the page's data comes from: the file that it stands in, or the server that sent it. */
export interface Source {
  run(): Promise<Run>;
  index(id: string): Promise<Index>;
  tree(id: string, row: number): Promise<Tree>;
  /** Rows whose conversations hold the text; `progress` gets the searched share. */
  search(text: string, progress: (share: number) => void, signal: AbortSignal): Promise<Hit[]>;
  credit(id: string, row: number, algorithm: string): Promise<Credit>;
  problem(id: string): Promise<Occurrence[]>;
}

/** Values by key, of which the least recently used are dropped above `size`. */
export class Recent<T> {
  private readonly values = new Map<string, Promise<T>>();

  constructor(private readonly size: number) {}

  get(key: string, load: () => Promise<T>): Promise<T> {
    const value = this.values.get(key) ?? load();
    this.values.delete(key);
    this.values.set(key, value);
    value.catch(() => this.values.delete(key));
    const oldest = this.values.keys().next().value;
    if (this.values.size > this.size && oldest !== undefined) this.values.delete(oldest);
    return value;
  }
}
