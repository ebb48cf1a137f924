"""Child processes with limits: whatever a request does, it ends with a reason, and the next one is answered."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from processes import children, is_running, wait_until
from ramify.core.errors import MachineError
from ramify.runtime.limited_process import Ending, LimitedProcesses, Limits, UnansweredError

pytestmark = pytest.mark.integration

LIMITS = Limits(cpu_seconds=2.0, memory_bytes=1 << 29, answer_bytes=1 << 23, wall_seconds=20.0)
PLAIN, FORKING = "limited_job", "limited_forking_job"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")


@pytest.fixture(scope="module", params=[PLAIN, FORKING])
def job(request):
    processes = LimitedProcesses(request.param, LIMITS)
    yield processes
    processes.close()


@pytest.fixture
def new_job():
    """Makes jobs, and closes them."""
    with contextlib.ExitStack() as stack:

        def start(module=PLAIN, processes=1, **limits):
            values = {name: getattr(LIMITS, name) for name in Limits.__slots__} | limits
            job = LimitedProcesses(module, Limits(**values), processes=processes)
            stack.callback(job.close)
            return job

        yield start


def ending(job, *request):
    with pytest.raises(UnansweredError) as unanswered:
        job.ask(list(request))
    assert "\n" not in str(unanswered.value)
    return unanswered.value.ending


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# requests and answers


@pytest.mark.parametrize(
    "value",
    [
        "",
        "\n\r\n\u2028",
        '"]\n[0,1]\n',
        "\x00\x1f",
        "a\ud800b",
        "\U0001f600",
        "x" * 3_000_000,
        None,
        1e300,
        {"a": [1]},
    ],
)
def test_any_value_comes_back_as_it_was(job, value):
    assert job.ask(["echo", value]) == [[value], 0]


@pytest.mark.parametrize("size", [0, 1, 65_536, 5_000_000])
def test_bytes_go_with_a_request(job, size):
    assert job.ask(["echo"], os.urandom(size)) == [[], size]


def test_what_a_library_prints_is_no_answer(job):
    assert job.ask(["print", '[0,"forged"]']) is None
    assert job.ask(["echo", 1]) == [[1], 0]


@on_linux
@pytest.mark.parametrize("text", ['"forged"]\n[0,"forged"]\n', "1],[0,", "[" * 100_000, "\n", "]", "\ufffd"])
def test_a_fork_cannot_forge_another_answer(new_job, text):
    job = new_job(FORKING)
    assert ending(job, "write_everywhere", text) is Ending.DIED
    assert job.ask(["echo", 1]) == [[1], 0]


# limits


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (["spin"], Ending.CPU_TIME),
        (["allocate", 1 << 40], Ending.MEMORY),
        (["allocate", 600 << 20], Ending.MEMORY),
        (["repeat", 1 << 23], Ending.ANSWER_SIZE),
        (["divide"], Ending.DIED),
        (["exit", 0], Ending.DIED),
        (["exit", Ending.KILLED], Ending.DIED),
        (["kill", signal.SIGSEGV], Ending.DIED),
    ],
    ids=str,
)
def test_a_request_over_a_limit_has_a_reason_and_the_next_an_answer(job, request_, reason):
    assert ending(job, *request_) is reason
    assert job.ask(["echo", 1]) == [[1], 0]


@pytest.mark.parametrize("module", [PLAIN, FORKING])
def test_a_request_that_sleeps_ends_by_the_clock(new_job, module):
    job = new_job(module, wall_seconds=3.0)
    assert job.ask(["echo", 1]) == [[1], 0]
    assert ending(job, "sleep", 60) is Ending.WALL_TIME
    assert job.ask(["echo", 1]) == [[1], 0]


def test_a_first_request_of_a_fork_that_sleeps_ends_by_the_clock(new_job):
    job = new_job(FORKING, wall_seconds=1.0)
    assert ending(job, "sleep", 60) is Ending.WALL_TIME
    assert job.ask(["echo", 1]) == [[1], 0]


@on_linux
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_process_that_somebody_stopped_counts_as_lost(new_job, size):
    job = new_job(wall_seconds=3.0)
    os.kill(job.ask(["pids"])[0], signal.SIGSTOP)
    assert ending(job, "echo", "x" * size) is Ending.WALL_TIME
    assert job.ask(["echo", 1]) == [[1], 0]


def test_the_processor_time_of_one_request_is_not_that_of_the_next(new_job):
    job = new_job(cpu_seconds=0.5)
    pids = {job.ask(["pids"])[0]}
    for _ in range(36):  # 36 * 0.03 s
        job.ask(["repeat", 2_000_000])
        pids.add(job.ask(["pids"])[0])
    assert len(pids) == 1


def test_the_message_says_the_limit(new_job):
    with pytest.raises(UnansweredError, match=r"^it takes more than 0.25 s of processor time$"):
        new_job(cpu_seconds=0.25).ask(["spin"])
    with pytest.raises(UnansweredError, match=r"^it takes more than 512 MiB of memory$"):
        new_job().ask(["allocate", 1 << 40])


def test_files_and_core_dumps_are_not_written(job, tmp_path):
    assert ending(job, "file", str(tmp_path / "file")) is Ending.DIED
    assert job.ask(["limits"])[0] == 0


# processes


def test_a_process_stays_warm_and_a_fork_leaves_nothing_behind(new_job):
    plain, forking = new_job(PLAIN), new_job(FORKING)
    assert [plain.ask(["count"]) for _ in range(3)] == [1, 2, 3]
    assert [forking.ask(["count"]) for _ in range(3)] == [1, 1, 1]
    assert len({tuple(plain.ask(["pids"])) for _ in range(3)}) == 1
    workers = {forking.ask(["pids"])[1] for _ in range(3)}
    for request in (["spin"], ["exit", 1], ["repeat", 1 << 23]):
        ending(forking, *request)
    workers.add(forking.ask(["pids"])[1])
    assert workers == set(forking.ask(["warm"]))


def test_a_killed_process_is_replaced(new_job):
    for module, index in ((PLAIN, 0), (FORKING, 1)):
        job = new_job(module)
        first = job.ask(["pids"])[index]
        os.kill(first, signal.SIGKILL)
        assert job.ask(["pids"])[index] != first


def test_a_process_that_is_killed_again_and_again_is_an_error(new_job):
    assert ending(new_job(PLAIN), "kill", signal.SIGKILL) is Ending.KILLED
    assert ending(new_job(PLAIN), "kill", signal.SIGTERM) is Ending.KILLED


def test_a_job_that_cannot_start_is_an_error(new_job, monkeypatch):
    assert ending(new_job("no_such_job"), "echo") is Ending.DIED
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(MachineError, match="cannot start a process for limited_job"):
        new_job().ask(["echo"])


@pytest.mark.parametrize(("module", "index"), [(PLAIN, 0), (FORKING, 1)])
def test_threads_share_so_many_processes(new_job, module, index):
    job = new_job(module, processes=2)
    answers = []
    threads = [
        threading.Thread(
            target=lambda n=n: answers.append((job.ask(["echo", n])[0][0], n, job.ask(["slow_pids"])[index]))
        )
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value for value, _, _ in answers) == list(range(12))
    assert all(value == n for value, n, _ in answers)
    assert len({pid for _, _, pid in answers}) == 2


def test_one_caller_uses_one_process(new_job):
    job = new_job(processes=3)
    assert len({job.ask(["pids"])[0] for _ in range(5)}) == 1


def test_ctrl_c_in_mid_answer_shifts_no_answer(new_job):
    job = new_job()
    job.ask(["echo", 1])
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            job.ask(["sleep", 60])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert job.ask(["echo", 2]) == [[2], 0]


@on_linux
@pytest.mark.parametrize("module", [PLAIN, FORKING])
def test_close_ends_what_runs_and_leaves_nothing(module, tmp_path):
    files, before = descriptors(), children()
    job = LimitedProcesses(module, LIMITS, processes=2)
    for request in (["divide"], ["spin"], ["kill", signal.SIGTERM]):
        ending(job, *request)
    endings = []
    started = tmp_path / "started"
    thread = threading.Thread(target=lambda: endings.append(ending(job, "sleep_after", str(started))))
    thread.start()
    wait_until(started.exists)
    job.close()
    thread.join(20)
    assert endings == [Ending.DIED]
    job.close()
    assert children() <= before
    assert job.ask(["echo", 1]) == [[1], 0]
    job.close()
    assert children() <= before
    assert descriptors() == files


PROGRAM = """
import sys, threading, time
sys.path[:0] = {path!r}
from ramify.runtime.limited_process import LimitedProcesses, Limits
job = LimitedProcesses({module!r}, Limits(cpu_seconds=1.0, memory_bytes=1 << 29, answer_bytes=1 << 20, wall_seconds=2.0))
pids = job.ask(["warm"])
threading.Thread(target=lambda: job.ask({request!r}), daemon=True).start()
time.sleep(0.2)
print(*pids, flush=True)
time.sleep(60)
"""


@on_linux
@pytest.mark.parametrize(
    ("module", "request_"),
    # Without its program, a job that does not fork has only the limit on processor time.
    [
        (PLAIN, ["echo"]),
        (PLAIN, ["spin"]),
        (FORKING, ["echo"]),
        (FORKING, ["spin"]),
        (FORKING, ["sleep", 60]),
    ],
    ids=str,
)
def test_a_job_ends_with_its_program(module, request_):
    code = PROGRAM.format(path=sys.path, module=module, request=request_)
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(program.stdout.readline())
    forks = children(worker)
    assert len(forks) == (module == FORKING and request_ != ["echo"])
    program.kill()
    program.communicate()
    wait_until(lambda: not any(map(is_running, [worker, *forks])))


FORK = """
import os, sys
sys.path[:0] = {path!r}
from ramify.runtime.limited_process import LimitedProcesses, Limits
job = LimitedProcesses("limited_job", Limits(cpu_seconds=1.0, memory_bytes=1 << 29, answer_bytes=1 << 20))
print(job.ask(["pids"]), flush=True)
child = os.fork()
print(job.ask(["pids"]), flush=True)
if child:
    os.waitpid(child, 0)
    print(job.ask(["pids"]), flush=True)
"""


def test_a_fork_of_the_program_has_a_process_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORK.format(path=sys.path)], capture_output=True, text=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 2


# confinement


@on_linux
def test_a_job_sees_no_key_and_cannot_be_inspected(job, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    assert set(job.ask(["environment"])) <= {"PYTHONPATH", "PYTHONHASHSEED", "LC_CTYPE"}
    assert job.ask(["folder"]) == "/"
    assert job.ask(["dumpable"]) == 0


@on_linux
def test_a_job_has_none_of_the_program_s_descriptors(new_job, tmp_path):
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        ends = new_job(PLAIN).ask(["descriptors"])
        assert not any("open" in path for path in ends.values())
        forked = new_job(FORKING).ask(["descriptors"])
    assert {forked["0"], forked["1"], forked["2"]} == {os.devnull}
    assert [path.split(":")[0] for number, path in forked.items() if int(number) > 2].count("pipe") == 1


@on_linux
def test_descriptors_may_have_high_numbers(new_job):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this user may open few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert new_job().ask(["echo", 1]) == [[1], 0]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
