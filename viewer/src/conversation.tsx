import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { pathTo } from "./forest";
import { readTurn } from "./node_text";
import { Chip } from "./parts";
import { TokenText } from "./token_text";
import type { PanelProps } from "./tree_page";
import type { Call, Message, Node, Result } from "./types";
import { clip, json, plural, short } from "./words";

/** The trajectory as the model saw it: messages, turns with folded thoughts, calls and results; or its exact tokens. */
export function Conversation({ forest, node, leaf, raw, setRaw, choose }: PanelProps): JSX.Element {
  const path = pathTo(forest, leaf);
  const chosen = useRef<HTMLElement>(null);
  useEffect(() => {
    if (node !== forest.root.id) chosen.current?.scrollIntoView({ block: "nearest" });
  }, [node, raw]);
  return (
    <section class="conversation" aria-label="Conversation">
      <label class="switch">
        <input type="checkbox" checked={raw} onChange={(event) => setRaw(event.currentTarget.checked)} />
        Exact tokens <kbd>r</kbd>
      </label>
      {path.map((part) => (
        <article
          key={part.id}
          ref={part.id === node ? chosen : null}
          class={`turn ${part.source} ${part.id === node && part !== forest.root ? "chosen" : ""}`}
          onClick={() => choose(part.id)}
        >
          <Head node={part} />
          {raw ? (
            <TokenText nodes={[part]} />
          ) : (
            <Body
              node={part}
              messages={part === forest.root ? forest.tree.problem.messages : part.messages}
            />
          )}
        </article>
      ))}
    </section>
  );
}

const ROLES = { prompt: "Prompt", policy: "Policy", tool: "Results" };

function Head({ node }: { node: Node }): JSX.Element {
  return (
    <h3>
      {node.source === "tool" && node.results.length === 0 ? "Messages" : ROLES[node.source]}{" "}
      <span class="soft">
        {node.id === "" ? "" : `${node.id}, `}
        {plural(node.ids.length, "token")}
        {node.version === null ? "" : `, version ${node.version}`}
        {node.rewriter === "" ? "" : `, text of ${node.rewriter}`}
      </span>
      {node.context === "fresh" && <Chip>fresh context</Chip>}
      {typeof node.context === "object" && (
        <Chip>
          goes on after {plural(node.context.tokens, "token")} of {node.context.node}
        </Chip>
      )}
      {node.stop !== null && node.stop !== "answered" && <Chip tone="bad">stopped: {node.stop}</Chip>}
    </h3>
  );
}

function Body({ node, messages }: { node: Node; messages: Message[] }): JSX.Element {
  if (node.source === "policy") return <PolicyTurn node={node} />;
  return (
    <>
      {node.results.map((result, at) => (
        <ToolResult key={at} result={result} />
      ))}
      {messages.map((message, at) => (
        <div key={at} class="message">
          <span class="role">{message.role}</span>
          <p class="text">{message.text}</p>
        </div>
      ))}
      {node.results.length === 0 && messages.length === 0 && <p class="text">{node.text}</p>}
      {node.source === "prompt" && messages.length > 0 && (
        <details>
          <summary>The whole prompt</summary>
          <pre class="text">{node.text}</pre>
        </details>
      )}
    </>
  );
}

function PolicyTurn({ node }: { node: Node }): JSX.Element {
  const { thoughts, rest } = readTurn(node);
  const turn = node.turn;
  return (
    <>
      {thoughts.map((thought, at) => (
        <details key={at} class="thought">
          <summary>Thought: {clip(thought, 90)}</summary>
          <p class="text">{thought}</p>
        </details>
      ))}
      {rest !== "" && turn?.kind !== "say" && <p class="text">{rest}</p>}
      {turn?.kind === "say" && <p class="text">{turn.text ?? rest}</p>}
      {turn?.kind === "calls" && turn.calls.map((call, at) => <CallBox key={at} call={call} />)}
      {turn?.kind === "final" && <p class="text answer">{turn.answer}</p>}
      {turn?.kind === "malformed" && (
        <p class="text failure">
          <b>Malformed turn:</b> {turn.reason}
        </p>
      )}
    </>
  );
}

function CallBox({ call }: { call: Call }): JSX.Element {
  return (
    <div class={`call ${call.malformed === null ? "" : "failure"}`}>
      <b>{call.name}</b> {call.malformed !== null && <Chip tone="bad">malformed: {call.malformed}</Chip>}
      <pre>{json(call.arguments)}</pre>
    </div>
  );
}

function ToolResult({ result }: { result: Result }): JSX.Element {
  const info = Object.keys(result.info).length > 0;
  return (
    <div class={`result ${result.status === "ok" || result.status === "empty" ? "" : "failure"}`}>
      <Chip tone={result.status === "ok" ? "" : "bad"}>{result.status}</Chip>
      {result.reward !== 0 && <Chip>reward {short(result.reward)}</Chip>}
      <pre class="text">{result.text}</pre>
      {info && (
        <details>
          <summary>Details of the tool</summary>
          <pre>{json(result.info)}</pre>
        </details>
      )}
    </div>
  );
}
