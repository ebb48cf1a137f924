"""The process that compares formulas with math-verify: one verdict for one pair, whatever else goes on."""

import multiprocessing

import pytest

from ramify.rewards.math_equal import MathWorker, Symbolic

pytestmark = pytest.mark.integration

ENDLESS = r"\int_0^{\pi} \frac{\sin^{9}(x^3)}{1+x^{7}} dx"
SLOW = r"\sum_{k=1}^{400} \frac{1}{k(k+1)}", r"\frac{400}{401}"


@pytest.fixture(scope="module")
def worker():
    comparer = MathWorker(cpu_seconds=2.0)
    yield comparer
    comparer.close()


def test_formulas_are_compared(worker: MathWorker) -> None:
    assert worker.compare("\\frac{x^2-1}{x-1}", "x+1") is Symbolic.EQUAL
    assert worker.compare("x+2", "x+1") is Symbolic.DIFFERENT
    assert worker.compare("", "") is worker.compare("x" * 10_000, "x") is Symbolic.UNREAD


def test_bare_text_is_read_as_math_verify_reads_it(worker: MathWorker) -> None:
    assert worker.compare("11\\sqrt{2}", "11", "bare") is Symbolic.EQUAL
    assert worker.compare("x^2", "x^3", "bare") in (Symbolic.UNREAD, Symbolic.DIFFERENT)


@pytest.mark.parametrize("text", ['"]\n', "\n\n", "\x00", "null", "\N{PILE OF POO}", "\ud800"])
def test_nothing_in_a_formula_reaches_the_protocol(worker: MathWorker, text: str) -> None:
    assert worker.compare(text, "1") in (Symbolic.UNREAD, Symbolic.DIFFERENT)
    assert worker.compare("2", "2") is Symbolic.EQUAL


def _spin(stop) -> None:
    while not stop.is_set():
        sum(range(10_000))


def test_neighbours_change_no_verdict(worker: MathWorker) -> None:
    """The allowance is CPU time: a pair that waits for a core keeps it, and one without end runs out of it."""
    stop = multiprocessing.get_context("spawn").Event()
    busy = [
        multiprocessing.get_context("spawn").Process(target=_spin, args=(stop,), daemon=True)
        for _ in range(6)
    ]
    for process in busy:
        process.start()
    try:
        assert {worker.ask(*SLOW) for _ in range(20)} == {Symbolic.EQUAL}
        assert worker.ask(ENDLESS, "1/7") is Symbolic.TIMEOUT
    finally:
        stop.set()
        for process in busy:
            process.join()


def test_what_ran_out_of_time_leaves_nothing_behind(worker: MathWorker) -> None:
    assert worker.compare("9^{9^{9^9}}", "9^{9^9}") is Symbolic.TIMEOUT
    assert worker.compare("1/2", "0.5") is Symbolic.EQUAL


def test_too_little_memory_is_no_verdict() -> None:
    starved = MathWorker(memory_bytes=24 << 20)
    assert starved.ask("1/2", "0.5") is Symbolic.KILLED
    starved.close()


def test_a_worker_that_is_closed_compares_again() -> None:
    worker = MathWorker()
    for _ in range(2):
        assert worker.ask("1/2", "0.5") is Symbolic.EQUAL
        worker.close()
