"""The quick start's evaluations, in parallel on the available processors.

`python -m ramify.quickstart.evaluations` runs those whose recipes it finds as JSON on its standard input, and answers
each with a line of JSON.
"""

import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO

from ramify.config.schema_eval import EvalRecipe
from ramify.core.errors import MachineError, RunInterruptedError, SignalInterrupt, UserError
from ramify.eval.evaluation import Evaluation, make_evaluation
from ramify.eval.results import read_records
from ramify.obs.console import RunConsole
from ramify.runtime.stopping import Stops
from ramify.sandbox.kernel import forbid_inspection

MAX_PROCESSES = 2
"""Each holds torch, a model and an index: half a gigabyte."""
_STOP_SECONDS = 10.0


def evaluate(recipes: Mapping[str, EvalRecipe], console: RunConsole) -> tuple[dict[str, Evaluation], int]:
    """Run the recipes; return the evaluations by title, and the peak memory of the processes together in bytes.

    Raises:
        MachineError: An evaluation failed.
        SignalInterrupt: Ctrl-C or SIGTERM; the processes have ended.
    """
    evaluations: dict[str, Evaluation] = {}
    memory: dict[int, int] = {}
    titles = list(recipes)
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_processes = min(MAX_PROCESSES, num_cpus)
    with console.phase("evaluation", len(titles)) as phase, ExitStack() as stack:
        ready = stack.enter_context(DefaultSelector())
        for first in range(num_processes):
            part = {title: recipes[title] for title in titles[first::num_processes]}
            ready.register(stack.enter_context(_evaluator(part, num_cpus // num_processes)), EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select():
                assert isinstance(key.fileobj, io.RawIOBase)
                line = key.fileobj.readline()
                answer = json.loads(line) if line.endswith(b"\n") else {}
                if "error" in answer:
                    raise MachineError(f"evaluation: {answer['error']}")
                if not answer:
                    ready.unregister(key.fileobj)
                    continue
                memory[key.fd] = answer["memory"]
                title = answer["title"]
                recipe = recipes[title]
                evaluations[title] = make_evaluation(
                    read_records(recipe.run.dir),
                    answer["problems"],
                    recipe.sampling.attempts,
                    recipe.run.seed,
                )
                phase.advance(1, waiting="", latest=f"{title} {evaluations[title].pass_at(1).value:.3f}")
    if missing := [title for title in titles if title not in evaluations]:
        raise MachineError(f"evaluation: the process for {', '.join(missing)} died")
    return evaluations, sum(memory.values())


@contextmanager
def _evaluator(recipes: Mapping[str, EvalRecipe], threads: int) -> Iterator[IO[bytes]]:
    """Run a process that evaluates these while the block runs; yields its standard output."""
    request = json.dumps({title: recipe.model_dump(mode="json") for title, recipe in recipes.items()})
    # In a session of its own, Ctrl-C reaches it from here alone.
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        # For a recipe that names no number of threads.
        env={"OMP_NUM_THREADS": str(threads), **os.environ},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request.encode())
        process.stdin.close()
        yield process.stdout
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """Evaluate the recipes on standard input."""
    forbid_inspection()
    with Stops("evaluation", owns_process=True):
        try:
            recipes = json.load(sys.stdin)
            from ramify.assemble.evaluation import run_eval

            for title, recipe in recipes.items():
                evaluation = run_eval(EvalRecipe.model_validate(recipe), RunConsole(io.StringIO()))
                problems = [result.id for result in evaluation.results]
                _answer({"title": title, "problems": problems, "memory": peak_memory_bytes()})
        except UserError as error:
            _answer({"error": str(error)})
        except (RunInterruptedError, SignalInterrupt):
            return


def _answer(answer: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


_STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Return the peak resident size of this process, without its children (a sandbox has about 20 MB).

    Linux has it in /proc; there `getrusage` starts from the size of the parent.
    """
    if _STATUS.exists():
        (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
