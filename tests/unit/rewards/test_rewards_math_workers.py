import threading

import pytest

from ramify.rewards.math_workers import MathWorkers, Symbolic

pytestmark = pytest.mark.integration

BOMB = "9^{9^{9^9}}"


@pytest.fixture(scope="module")
def workers():
    made = MathWorkers(seconds=20.0)
    yield made
    made.close()


def test_formulas_are_compared(workers: MathWorkers) -> None:
    assert workers.compare("\\frac{x^2-1}{x-1}", "x+1") is Symbolic.EQUAL
    assert workers.compare("x+2", "x+1") is Symbolic.DIFFERENT
    assert workers.compare("", "") is Symbolic.UNREAD
    assert workers.compare("x" * 10_000, "x") is Symbolic.UNREAD


def test_bare_text_is_read_as_math_verify_reads_it(workers: MathWorkers) -> None:
    assert workers.compare("11\\sqrt{2}", "11", "bare") is Symbolic.EQUAL
    assert workers.compare("x^2", "x^3", "bare") in (Symbolic.UNREAD, Symbolic.DIFFERENT)


def test_nothing_in_a_formula_reaches_the_protocol(workers: MathWorkers) -> None:
    for text in ('"]\n', "\n\n", "\x00", "null", "\N{PILE OF POO}"):
        assert workers.compare(text, "1") in (Symbolic.UNREAD, Symbolic.DIFFERENT)
    assert workers.compare("2", "2") is Symbolic.EQUAL


def test_a_bomb_costs_its_time_limit_and_the_next_comparison_works() -> None:
    workers = MathWorkers(seconds=1.0)
    assert workers.compare(BOMB, "9^{9^9}") is Symbolic.TIMEOUT
    workers = MathWorkers(seconds=20.0)
    assert workers.compare("1/2", "0.5") is Symbolic.EQUAL
    workers.close()
    assert workers.compare("1/2", "0.5") is Symbolic.EQUAL
    workers.close()


def test_a_process_that_has_no_memory_is_replaced() -> None:
    workers = MathWorkers(seconds=20.0, memory_bytes=24 << 20)
    assert workers.compare("1/2", "0.5") is Symbolic.KILLED
    assert workers.compare("1/2", "0.5") is Symbolic.KILLED
    workers.close()


def test_calls_of_several_threads_wait_for_a_free_process(workers: MathWorkers) -> None:
    found = []
    threads = [
        threading.Thread(target=lambda n=n: found.append((n, workers.compare(f"{n}x + x", f"{n + 1}x"))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(n, Symbolic.EQUAL) for n in range(8)]
