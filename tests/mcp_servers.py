"""MCP servers for tests, written with the real package's server API, and the processes that run them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from ports import held_port, takes_connections
from processes import wait_until
from ramify.core.messages import ToolCall

SHOP = '''
"""A server whose state is a sum, and which can also do what servers should not do."""

import os, random, subprocess, sys, time
import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

print("a line for people", flush=True)
print("and one for the log", file=sys.stderr)
server = MCPServer("shop")
state = {"sum": 0}
BORN = random.getrandbits(64)

@server.tool()
def add(n: int) -> str:
    """Add n to the sum.

    Whole numbers only."""
    state["sum"] += n
    return f"sum {state['sum']}"

@server.tool(structured_output=False)
def search(query: str) -> str:
    """Look something up."""
    state["sum"] += 1
    return f"{query}: lookup {state['sum']}"

@server.tool(structured_output=False)
def born(query: str) -> str:
    """Another answer at each start."""
    return f"{query} {BORN}"

@server.tool()
def fail() -> str:
    raise LookupError("sold out")

@server.tool(structured_output=False)
def nothing():
    return []

@server.tool()
def data() -> CallToolResult:
    return CallToolResult(content=[], structured_content={"price": 3, "name": "é"})

@server.tool()
def parts() -> CallToolResult:
    note = TextResourceContents(uri="file:///note", text="a note")
    return CallToolResult(content=[
        TextContent(text="look:"), ImageContent(data="AAAA", mime_type="image/png"),
        EmbeddedResource(resource=note), ResourceLink(name="price list", uri="file:///prices"),
    ])

@server.tool()
def long(n: int) -> str:
    return "x" * n

@server.tool()
async def wait() -> str:
    await anyio.sleep(1000)

@server.tool()
def block() -> str:
    time.sleep(1000)

@server.tool()
def pid() -> str:
    return str(os.getpid())

@server.tool()
def start_helper() -> str:
    """A child that holds the server's output."""
    return str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", sys.argv[0]]).pid)

@server.tool(structured_output=False)
async def learn(ctx: Context) -> str:
    def learned() -> str:
        return "new"
    server.add_tool(learned)
    server.remove_tool("block")
    await ctx.session.send_tool_list_changed()
    return "done"

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
'''

STUBBORN = '''
"""Ignores the end of its input and SIGTERM; it answers one kind of call. With an argument it does not even begin."""

import json, signal, sys, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)

def answer(asked, result):
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)

for line in [] if sys.argv[1:] else sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        info = {"name": "stubborn", "version": "1"}
        answer(asked, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif asked["method"] == "tools/list":
        cursor = asked.get("params", {}).get("cursor")
        page = {"tools": [{"name": f"tool{cursor or ''}", "inputSchema": {"type": "object"}}]}
        answer(asked, page if cursor else {**page, "nextCursor": "2"})
    elif asked.get("params", {}).get("name") == "tool2":
        answer(asked, {"content": [{"type": "text", "text": "half of " + chr(0xD83D)}]})
    elif asked["method"] == "tools/call":
        break
while True:
    time.sleep(1000)
'''

RAW = """
# Lists the tools of the first file, and those of the second once one was called; a call gives the text "done".

import json, sys

def write(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

lists = [open(path).read() for path in sys.argv[1:]]
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        info = {"name": "raw", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}
    elif asked["method"] == "tools/list":
        result = json.loads(lists[0])
    elif asked["method"] == "tools/call":
        if len(lists) > 1:
            lists.pop(0)
            write({"method": "notifications/tools/list_changed"})
        result = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"a": "a" * 40 + "!"}}
        result = {"name": "no content"} if asked["params"]["name"] == "wrong" else result
    else:
        continue
    write({"id": asked["id"], "result": result})
"""


def write_raw_server(folder, *lists, **more):
    """The command of a server that lists these tools, as JSON, whatever they are; `more` stands beside each list."""
    program, *files = (
        folder / name for name in ("server.py", *(f"{number}.json" for number in range(len(lists))))
    )
    program.write_text(RAW)
    for file, tools in zip(files, lists, strict=True):
        file.write_text(json.dumps({"tools": tools, **more}))
    return sys.executable, str(program), *map(str, files)


def write_server(folder, text):
    """The command that runs a server."""
    path = folder / "server.py"
    path.write_text(text)
    return sys.executable, str(path)


def call(name, **arguments):
    """A call of a server's tool."""
    return ToolCall("c", name, arguments)


def running(command):
    """Ids of the processes whose arguments name the server's file."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,args="], capture_output=True, text=True, check=True
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if command[1] in line]


@contextmanager
def served(command):
    """The address of the server over streamable HTTP, and its process."""
    with held_port() as port:
        process = subprocess.Popen(
            [*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: process.poll() is not None or takes_connections(port), 240.0)
            assert process.poll() is None, "the server has ended"
            yield f"http://127.0.0.1:{port}/mcp", process
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
