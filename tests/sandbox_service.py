"""A service that runs programs over HTTP as SandboxFusion's documentation describes, on loopback and without isolation."""

import subprocess
import sys
import tempfile
import time

from loopback import HttpRequest, Reply, as_json


def run_code(request: HttpRequest) -> Reply:
    """Answer POST /run_code."""
    if (request.method, request.path) != ("POST", "/run_code"):
        return as_json({"detail": "Not Found"}, 404)
    body = request.json()
    if body["language"] != "python":
        return as_json({"detail": "language"}, 422)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", body["code"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={},
            cwd=folder,
        )
        try:
            stdout, stderr = process.communicate(timeout=body["run_timeout"])
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            return answer("TimeLimitExceeded", None, stdout, stderr, time.monotonic() - started)
    return answer("Finished", process.returncode, stdout, stderr, time.monotonic() - started)


def answer(status: str, code: int | None, stdout: str = "", stderr: str = "", seconds: float = 0.1) -> Reply:
    """The service's answer about a process that it ran."""
    outcome = {
        "status": status, "execution_time": seconds, "return_code": code, "stdout": stdout, "stderr": stderr,
    }  # fmt: skip
    good = status == "Finished" and code == 0
    return as_json(
        {
            "status": "Success" if good else "Failed", "message": "", "compile_result": None,
            "run_result": outcome, "executor_pod_name": None, "files": {},
        }
    )  # fmt: skip
