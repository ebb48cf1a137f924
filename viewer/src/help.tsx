import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

const KEYS: [keys: string[], text: string][] = [
  [["1", "2", "3", "4"], "trees, failures, problems, run"],
  [["/"], "search"],
  [["↑", "↓"], "next tree in the list; next branch in a tree"],
  [["Enter"], "open the tree"],
  [["←", "→"], "parent, child"],
  [["n", "b"], "next tree, tree before"],
  [["c"], "conversation"],
  [["t"], "tokens and their numbers"],
  [["d"], "difference to a sibling"],
  [["i"], "branch decisions"],
  [["l"], "time line"],
  [["u"], "tokens used and their cost"],
  [["p"], "credit of another algorithm"],
  [["h"], "the same problem at other steps"],
  [["x"], "commands to copy"],
  [["r"], "raw or rendered text"],
  [["Esc"], "back to the list"],
  [["?"], "these keys"],
];

export function Help({ close }: { close(): void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} class="help" aria-labelledby="help-title" onClose={close}>
      <h2 id="help-title">Keys</h2>
      <dl>
        {KEYS.map(([keys, text]) => (
          <div key={text}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <button onClick={close}>Close</button>
    </dialog>
  );
}
