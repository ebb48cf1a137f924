"""A remote sandbox: what the service says in each case, and what becomes of it."""

import asyncio

import pytest

from loopback import Reply, as_json, serve
from ramify.core.errors import ServiceDownError
from ramify.core.messages import Message, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import SandboxStatus
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.configs import PythonConfig
from ramify.tools.python import PythonTool, RemoteSandbox
from sandbox_service import answer

pytestmark = pytest.mark.integration

SETTINGS = HttpSettings(timeout_seconds=5, attempts=1, max_bytes=100_000)
PROBLEM = Problem("p", (Message.of("user", "?"),), ("1",))


def ask(reply, work=lambda sandbox: sandbox.run("1", 2.5), **settings):
    """Return the result of `work` over a service that always says `reply`, and its requests."""
    with serve(lambda _: reply) as here:

        async def main():
            client = HttpClient("sandbox", SETTINGS)
            sandbox = RemoteSandbox(client, base_url=f"{here.url}/", **settings)
            try:
                return await work(sandbox)
            finally:
                await sandbox.close()
                await sandbox.close()

        return asyncio.run(main()), here.requests


def test_the_request_is_that_of_the_wire_format():
    _, requests = ask(answer("Finished", 0), headers={"x-key": "abc"})
    (request,) = requests
    assert (request.method, request.path, request.headers["x-key"]) == ("POST", "/run_code", "abc")
    body = request.json()
    assert body.keys() == {"code", "language", "run_timeout"}
    assert (body["language"], body["run_timeout"]) == ("python", 2.5)
    compile(body["code"], "program", "exec")


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (answer("Finished", 0, "a"), SandboxStatus.OK),
        (answer("Finished", 1, "a"), SandboxStatus.ERROR),
        (answer("Finished", -9, "a"), SandboxStatus.KILLED),
        (answer("Error", None, "a"), SandboxStatus.KILLED),
        (answer("TimeLimitExceeded", None, "a"), SandboxStatus.TIMEOUT),
    ],
)
def test_ends_of_a_process_have_a_status(reply, status):
    result, _ = ask(reply, declared_level=2)
    assert (result.status, result.stdout, result.level, result.remote) == (status, "a", 2, True)


def test_streams_that_the_service_leaves_out_are_empty():
    result, _ = ask(as_json({"status": "Success", "run_result": {"status": "Finished", "return_code": 0}}))
    assert (result.stdout, result.stderr) == ("", "")


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (as_json({"status": "SandboxError", "message": "no pod", "run_result": None}), FailureKind.MALFORMED),
        (as_json({"status": "Failed", "message": "", "run_result": None}), FailureKind.MALFORMED),
        (as_json({"status": "What", "run_result": {}}), FailureKind.MALFORMED),
        (as_json({"status": ["Success"], "run_result": {}}), FailureKind.MALFORMED),
        (as_json({"status": "Success", "run_result": {"status": "Finished"}}), FailureKind.MALFORMED),
        (as_json({"status": "Success", "run_result": {"status": "What", "return_code": 0}}), FailureKind.MALFORMED),
        (as_json({"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": 3}}), FailureKind.MALFORMED),
        (as_json(["Success"]), FailureKind.MALFORMED),
        (Reply(200, b"<html>", {"content-type": "text/html"}), FailureKind.MALFORMED),
        (answer("Finished", 0, "x" * 200_000), FailureKind.TOO_LARGE),
        (as_json({}, 429), FailureKind.TOO_MANY),
        (as_json({}, 500), FailureKind.SERVER),
        (as_json({"detail": "language"}, 422), FailureKind.CLIENT),
    ],
)  # fmt: skip
def test_a_service_that_ran_nothing_is_a_failed_request(reply, kind):
    with pytest.raises(RequestFailedError) as caught:
        ask(reply)
    assert caught.value.kind is kind


def test_what_the_service_says_of_its_own_failure_is_repeated():
    with pytest.raises(RequestFailedError, match="the service ran nothing: no pod"):
        ask(as_json({"status": "SandboxError", "message": "no pod", "run_result": None}))


def test_a_service_that_always_fails_ends_the_run():
    async def again(sandbox):
        for _ in range(SETTINGS.failures_to_open + 1):
            with pytest.raises(RequestFailedError):
                await sandbox.run("1", 1.0)

    with pytest.raises(ServiceDownError):
        ask(as_json({"status": "SandboxError", "message": "no pod", "run_result": None}), again)


def call(reply, **settings):
    async def work(sandbox):
        session = await PythonTool(sandbox, PythonConfig()).open(PROBLEM)
        return await session.call(ToolCall("c", "python", {"code": "1"}))

    return ask(reply, work, **settings)[0]


def test_results_of_the_tool_say_that_they_are_a_remote_ones():
    info = {"sandbox_level": 0, "sandbox": "remote"}
    assert call(answer("Finished", 0, "1\n")) == ToolResult("c", ToolStatus.OK, "1", info)


def test_a_failed_request_is_a_result_of_the_tool():
    result = call(as_json({}, 500))
    assert (result.status, result.info) == (ToolStatus.ERROR, {"failure": "server"})
    assert result.text == "The program was not run: the sandbox service failed."
