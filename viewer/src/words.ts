/** A number in few digits: 0.0831, 12.4, 4,950. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US").replace("-", "−");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : size >= 0.001 ? 4 : 0;
  const text = digits === 0 && size < 0.001 ? value.toExponential(1) : value.toFixed(digits);
  return text.replace(/^-/, "−");
}

/** A reward: two decimals always, so that a column of them can be compared. */
export function score(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value.toFixed(2).replace("-", "−");
}

export function signed(value: number | null | undefined): string {
  return value !== null && value !== undefined && value > 0 ? `+${short(value)}` : short(value);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${short(Math.round(value * 1e4) / 10)} ms`;
  return value < 120 ? `${short(value)} s` : `${short(value / 60)} min`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${short(count)} ${count === 1 ? one : many}`;
}

export function percent(value: number): string {
  return `${Math.round(value * 100)} %`;
}

/** At most `length` characters, without line breaks. */
export function clip(text: string, length: number): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= length ? line : `${line.slice(0, length - 1)}…`;
}

/** Texts of the numbers of a run's metrics: "reward/mean" is shown as it is logged. */
export function json(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "";
}

const SPECIAL = /^\s*(<\|[^|]*\|>|<\/?[a-z_]+>|\[\/?[A-Z_]+\]|<[|｜][^>]*[|｜]>)\s*$/;

/** True for tokens that a chat template or a dialect brings: they are shown with a frame. */
export function isSpecial(token: string): boolean {
  return SPECIAL.test(token);
}

/** A token with its white space made visible; a frame around it stays on one line. */
export function visible(token: string): string {
  const text = token.replace(/ /g, "·").replace(/\t/g, "→");
  return isSpecial(token) ? text.replace(/\n/g, "↵") : text.replace(/\n(?!$)/g, "↵\n").replace(/\n$/, "↵");
}

/** A line break behind a token that ends with one. */
export function breakAfter(token: string): string {
  return token.endsWith("\n") ? "\n" : "";
}

/** A value for a shell: bare if it is harmless, else in single quotes; null if it holds control characters. */
export function shellWord(value: string): string | null {
  // eslint-style control character classes are the point here: a pasted line break runs what stands before it.
  if (/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/.test(value)) return null;
  return /^[\w./:@%+,-]+$/.test(value) ? value : `'${value.replaceAll("'", `'\\''`)}'`;
}
