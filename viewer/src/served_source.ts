import { Recent, type Source } from "./source";
import type { Credit, Hit, Index, Occurrence, Run, Tree } from "./types";

const TREES_IN_MEMORY = 200;

interface Answer {
  tag: string;
  value: unknown;
}

/** The doors of `ramify view --serve`. Indexes and the run are asked for again with the tag of their last answer. */
export class ServedSource implements Source {
  private readonly answers = new Map<string, Answer>();
  private readonly trees = new Recent<Tree>(TREES_IN_MEMORY);

  constructor(private readonly token: string) {}

  run(): Promise<Run> {
    return this.again<Run>("api/run");
  }

  index(id: string): Promise<Index> {
    return this.again<Index>(`api/index?source=${encodeURIComponent(id)}`);
  }

  tree(id: string, row: number): Promise<Tree> {
    const address = `api/tree?source=${encodeURIComponent(id)}&row=${row}`;
    return this.trees.get(address, async () => (await this.fetch(address)).json());
  }

  async search(text: string, progress: (share: number) => void, signal: AbortSignal): Promise<Hit[]> {
    const answer = await this.fetch(`api/search?q=${encodeURIComponent(text)}`, {}, signal);
    progress(1);
    return answer.json();
  }

  async credit(id: string, row: number, algorithm: string): Promise<Credit> {
    const name = encodeURIComponent(algorithm);
    return (
      await this.fetch(`api/credit?source=${encodeURIComponent(id)}&row=${row}&algorithm=${name}`)
    ).json();
  }

  async problem(id: string): Promise<Occurrence[]> {
    return (await this.fetch(`api/problem?id=${encodeURIComponent(id)}`)).json();
  }

  private async again<T>(address: string): Promise<T> {
    const last = this.answers.get(address);
    const answer = await this.fetch(address, last === undefined ? {} : { "if-none-match": last.tag });
    if (answer.status === 304 && last !== undefined) return last.value as T;
    const value: unknown = await answer.json();
    const tag = answer.headers.get("etag");
    if (tag !== null) this.answers.set(address, { tag, value });
    return value as T;
  }

  private async fetch(
    address: string,
    headers: Record<string, string> = {},
    signal: AbortSignal | null = null,
  ): Promise<Response> {
    const sent = { "x-ramify-token": this.token, ...headers };
    // The tags are ours to compare: the browser's own cache would answer 200 where the server answered 304.
    const answer = await fetch(address, { headers: sent, signal, cache: "no-store" }).catch(
      (error: unknown) => {
        if (signal?.aborted === true) throw error;
        throw new Error(
          "The server does not answer. Start ramify view again and use the address that it prints.",
        );
      },
    );
    if (answer.ok || answer.status === 304) return answer;
    if (answer.status === 401 || answer.status === 403)
      throw new Error(
        "The address lacks the server's token. Open the whole address that ramify view printed.",
      );
    throw new Error((await answer.text()).slice(0, 300) || `The server answered ${answer.status}.`);
  }
}

/** Take the token out of the address, so that a copied permalink does not carry it; a reload finds it in the session. */
export function takeToken(window: Window): string {
  const parts = window.location.hash.slice(1).split("&");
  const token = parts.find((part) => part.startsWith("token="))?.slice("token=".length);
  if (token === undefined) return window.sessionStorage.getItem("ramify-token") ?? "";
  window.sessionStorage.setItem("ramify-token", token);
  const rest = parts.filter((part) => !part.startsWith("token=")).join("&");
  window.history.replaceState(null, "", rest === "" ? window.location.pathname : `#${rest}`);
  return token;
}
