import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { readRows } from "./rows";
import { formatRoute, parseRoute, type Route } from "./route";
import type { Source } from "./source";
import type { Row, Run } from "./types";

const LIVE_MILLISECONDS = 2000;
const AT_ONCE = 6;

/** The route of the address, and a function that changes it; `replace` leaves no step in the history. */
export function useRoute(): [Route, (change: Partial<Route>, replace?: boolean) => void] {
  const [route, setRoute] = useState(() => parseRoute(window.location.hash));
  useEffect(() => {
    const read = (): void => setRoute(parseRoute(window.location.hash));
    window.addEventListener("hashchange", read);
    window.addEventListener("popstate", read);
    return () => {
      window.removeEventListener("hashchange", read);
      window.removeEventListener("popstate", read);
    };
  }, []);
  const go = useCallback((change: Partial<Route>, replace = false) => {
    setRoute((route) => {
      const next = { ...route, ...change };
      const hash = formatRoute(next);
      if (hash !== (window.location.hash || "#"))
        window.history[replace ? "replaceState" : "pushState"](null, "", hash);
      return next;
    });
  }, []);
  return [route, go];
}

export interface Loaded {
  run: Run | null;
  rows: Row[];
  /** Sources whose index was read. */
  read: number;
  error: string;
}

/** The run and the rows of all its indexes; a live run is asked again, and files that grew are read again. */
export function useRun(source: Source): Loaded {
  const [loaded, setLoaded] = useState<Loaded>({ run: null, rows: [], read: 0, error: "" });
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const rows = new Map<string, Row[]>();
    const trees = new Map<string, number>();
    let last: Run | null = null;
    const refresh = async (): Promise<void> => {
      const run = await source.run();
      if (stopped) return;
      const show = (): void => {
        if (!stopped)
          setLoaded({
            run,
            rows: run.sources.flatMap(({ id }) => rows.get(id) ?? []),
            read: rows.size,
            error: "",
          });
      };
      const changed = run.sources.filter((file) => trees.get(file.id) !== file.trees);
      for (let at = 0; at < changed.length && !stopped; at += AT_ONCE) {
        if (at === AT_ONCE) show();
        const files = changed.slice(at, at + AT_ONCE);
        const indexes = await Promise.all(files.map((file) => source.index(file.id)));
        indexes.forEach((index) => rows.set(index.source, readRows(run, index)));
        files.forEach((file) => trees.set(file.id, file.trees));
      }
      // Nothing new: what is shown stays as it is.
      if (run !== last || changed.length > 0) show();
      last = run;
      if (run.live && !stopped) timer = window.setTimeout(attempt, LIVE_MILLISECONDS);
    };
    const attempt = (): void => {
      refresh().catch((error: unknown) => {
        if (stopped) return;
        last = null;
        setLoaded((before) => ({ ...before, error: messageOf(error) }));
        timer = window.setTimeout(attempt, 2 * LIVE_MILLISECONDS);
      });
    };
    attempt();
    return () => {
      stopped = true;
      window.clearTimeout(timer);
    };
  }, [source]);
  return loaded;
}

export interface Pending<T> {
  value: T | null;
  error: string;
}

/** The value of a promise that `load` starts; the last value stays while a new one is on its way. */
export function useLoaded<T>(load: () => Promise<T>, keys: unknown[]): Pending<T> {
  const [state, setState] = useState<Pending<T>>({ value: null, error: "" });
  useEffect(() => {
    let stopped = false;
    load().then(
      (value) => stopped || setState({ value, error: "" }),
      (error: unknown) => stopped || setState({ value: null, error: messageOf(error) }),
    );
    return () => {
      stopped = true;
    };
  }, keys);
  return state;
}

/** Call the handler of a key that is pressed outside of fields; a handler that returns false leaves the key alone. */
export function useKeys(keys: Record<string, (event: KeyboardEvent) => unknown>): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        target.closest("input, select, textarea") !== null
      )
        return;
      if (event.key.startsWith("Arrow") && target.closest("[role=tablist], .keeps-arrows") !== null) return;
      if (event.key === "Enter" && target.closest("button, a, summary") !== null) return;
      const handler = latest.current[event.key];
      if (handler !== undefined && handler(event) !== false) event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}

/** The width of an element in pixels, as it changes. */
export function useSize<T extends Element>(): [{ current: T | null }, { width: number; height: number }] {
  const ref = useRef<T>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useEffect(() => {
    const element = ref.current;
    if (element === null) return;
    const observer = new ResizeObserver(() =>
      setSize({ width: element.clientWidth, height: element.clientHeight }),
    );
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, size];
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
