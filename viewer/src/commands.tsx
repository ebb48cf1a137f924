import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { partner } from "./parting";
import { Field } from "./parts";
import type { PanelProps } from "./tree_page";
import { shellWord } from "./words";

/** Commands for the chosen node and trajectory, to copy into a shell. */
export function Commands({ forest, node, leaf }: PanelProps): JSX.Element {
  const other = partner(forest, leaf) ?? leaf;
  const names = forest.trajectories;
  const reward = (id: string): number => names.get(id)?.reward ?? 0;
  // The better one of a pair is the one that is preferred.
  const pair = reward(other) > reward(leaf) ? { leaf: other, other: leaf } : { leaf, other };
  return (
    <section aria-label="Commands">
      <p class="soft">
        For node <code>{node || "(prompt)"}</code>, trajectory <code>{leaf}</code>
        {names.size > 1 && (
          <>
            , against <code>{other}</code>
          </>
        )}
        . Choose another node in the tree to change them.
      </p>
      {forest.tree.commands.map((command) => (
        <CommandLine
          key={command.name}
          name={command.name}
          text={filled(
            command.template,
            command.template.includes("{other}") ? { node, ...pair } : { node, leaf },
          )}
        />
      ))}
      <CommandLine name="link to this node" text={window.location.href} />
    </section>
  );
}

/** The command with its ids as words of a shell; null if an id cannot stand there. */
export function filled(template: string, ids: Record<string, string>): string | null {
  let broken = false;
  const text = template.replace(/\{(node|leaf|other)\}/g, (_, name: string, at: number) => {
    const id = ids[name] ?? "";
    // Behind a letter an empty id is nothing; by itself it is a word.
    const word = id === "" && /\S/.test(template[at - 1] ?? " ") ? "" : shellWord(id);
    broken ||= word === null;
    return word ?? "";
  });
  return broken ? null : text;
}

function CommandLine({ name, text }: { name: string; text: string | null }): JSX.Element {
  const [copied, setCopied] = useState("");
  if (text === null)
    return (
      <p class="failure">{name}: the node's id holds control characters. It cannot be copied into a shell.</p>
    );
  const copy = async (area: HTMLTextAreaElement | null): Promise<void> => {
    area?.select();
    try {
      await navigator.clipboard.writeText(text);
      setCopied("copied");
    } catch {
      setCopied(document.execCommand("copy") ? "copied" : "select it and copy");
    }
  };
  return (
    <div class="command">
      <Field label={name}>
        <textarea
          readOnly
          rows={Math.min(4, Math.ceil(text.length / 70))}
          value={text}
          onFocus={(event) => event.currentTarget.select()}
        />
      </Field>
      <button
        onClick={(event) => void copy(event.currentTarget.parentElement?.querySelector("textarea") ?? null)}
      >
        Copy
      </button>
      <span class="soft" role="status">
        {copied}
      </span>
    </div>
  );
}
