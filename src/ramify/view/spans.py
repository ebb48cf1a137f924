"""Trees as spans of OpenTelemetry, for the many programs that read them: Weave, MLflow, Langfuse, Phoenix, Jaeger, collectors.

The file has a request of OTLP/JSON a line, as the collector's `otlpjsonfile` reads it, with the attributes of the conventions for generative AI
(gen_ai.*) and our own (ramify.*). A trajectory is a trace: a span for the agent, below it a span for each model turn and each call that ran.
What trajectories share stands in the trace of each.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.files.durable import replacing
from ramify.view.payload import RunView
from ramify.view.safe import clean

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_FAILED_STOPS = ("failed", "deadline")
_WORKED = ("ok", "empty")


def write_spans(view: RunView, path: Path, advance: Callable[[], None]) -> int:
    """Write the spans of all trees, a line a tree; returns the number of traces. `advance` is called after each tree.

    The view's `unreadable` then has the trees that are left out.
    """
    traces = 0
    with replacing(path) as file:
        for key, source in view.sources.items():
            name = clean(source.owner.name)
            # A trace has no time of day: its file's is the beginning of its times.
            start = source.path.stat().st_mtime_ns
            for tree in view.readable_trees(key, advance):
                spans = [list(_trace(tree, name, leaf, start)) for leaf in tree["trajectories"]]
                traces += len(spans)
                request = _request([span for trace in spans for span in trace])
                file.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
    return traces


def _request(spans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    resource = {"attributes": _attributes({"service.name": "ramify"})}
    scopes = [{"scope": {"name": "ramify.view"}, "spans": spans}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def _trace(
    tree: Mapping[str, Any], run: str, trajectory: Mapping[str, Any], start: int
) -> Iterator[dict[str, Any]]:
    """Yield the spans of a trajectory, the agent's first."""
    nodes = {node["id"]: node for node in tree["nodes"]}
    path, name = [], trajectory["leaf"]
    while name is not None:
        path.append(nodes[name])
        name = nodes[name]["parent"]
    trace = _digest(f"{run} {tree['source']} {tree['row']} {trajectory['leaf']}", 16)
    agent = _digest(f"{trace} agent", 8)
    below: list[dict[str, Any]] = []
    at = 0.0
    for node in reversed(path):
        for number, (title, kind, failed, attributes, time) in enumerate(_parts(node, nodes)):
            begin = at if time is None or time["begin"] is None else time["begin"]
            at = begin + (0.0 if time is None else time["seconds"])
            span = _digest(f"{trace} {node['id']} {number}", 8)
            common = {"ramify.node": node["id"]}
            below.append(
                _span(trace, span, title, kind, (start, begin, at), common | attributes, failed, agent)
            )
    begins = [int(span["startTimeUnixNano"]) - start for span in below]
    ends = [int(span["endTimeUnixNano"]) - start for span in below]
    times = (start, min(begins, default=0) / 1e9, max(ends, default=0) / 1e9)
    failed = trajectory["stop"] in _FAILED_STOPS
    yield _span(
        trace, agent, f"invoke_agent {run}", _INTERNAL, times, _of_agent(tree, run, trajectory), failed
    )
    yield from below


def _of_agent(tree: Mapping[str, Any], run: str, trajectory: Mapping[str, Any]) -> dict[str, Any]:
    problem, tokens = tree["problem"], trajectory["tokens"]
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": run,
        "gen_ai.input.messages": _messages([(each["role"], each["text"]) for each in problem["messages"]]),
        "gen_ai.output.messages": _messages([("assistant", trajectory["answer"])]),
        "gen_ai.usage.input_tokens": tokens["sent"],
        "gen_ai.usage.output_tokens": tokens["written"],
        "ramify.problem": problem["id"],
        "ramify.source": tree["source"],
        "ramify.tree": tree["row"],
        "ramify.leaf": trajectory["leaf"],
        "ramify.stop": trajectory["stop"],
        "ramify.reward": float(trajectory["reward"]),
        "ramify.right": trajectory["right"],
        "ramify.advantage": trajectory["advantage"],
        **{f"ramify.reward.{name}": float(value) for name, value in trajectory["parts"].items()},
    }


def _parts(
    node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, int, bool, dict[str, Any], Mapping[str, Any] | None]]:
    """Yield title, kind, failure, attributes and time of the turn or of the calls of a node."""
    if node["source"] == "policy":
        entropy = node["entropy"]
        yield (
            "chat",
            _CLIENT,
            node["turn"] is not None and node["turn"]["kind"] == "malformed",
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.output_tokens": len(node["ids"]),
                "gen_ai.output.messages": _messages([("assistant", node["text"])]),
                "ramify.policy_version": node["version"],
                "ramify.entropy": None if entropy is None else entropy["upper"],
            },
            node["time"],
        )
    turn = node["turn"] if node["stop"] is not None else nodes[node["parent"] or ""]["turn"]
    calls = [] if turn is None else turn["calls"]
    for call, result, time in zip(calls, node["results"], node["calls_time"], strict=False):
        yield (
            f"execute_tool {call['name']}",
            _INTERNAL,
            result["status"] not in _WORKED,
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call["name"],
                "gen_ai.tool.call.id": call["id"],
                "gen_ai.tool.call.arguments": json.dumps(call["arguments"]),
                "gen_ai.tool.call.result": result["text"],
                "ramify.status": result["status"],
            },
            time,
        )


def _span(
    trace: str,
    span: str,
    name: str,
    kind: int,
    times: tuple[int, float, float],
    attributes: Mapping[str, Any],
    failed: bool,
    parent: str = "",
) -> dict[str, Any]:
    start, begin, end = times
    return {
        "traceId": trace,
        "spanId": span,
        "parentSpanId": parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start + round(begin * 1e9)),
        "endTimeUnixNano": str(start + round(end * 1e9)),
        "attributes": _attributes(attributes),
        "status": {"code": _ERROR} if failed else {},
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP/JSON has them, without those that are None."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: str | bool | int | float) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"stringValue": value}


def _messages(messages: Sequence[tuple[str, str]]) -> str:
    return json.dumps(
        [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages]
    )


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
