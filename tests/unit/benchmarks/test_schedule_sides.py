import pytest
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from benchmarks.rollout.schedule_books import FirstComeBook, QuotaBook
from benchmarks.rollout.schedule_runs import Batch, N, grow_ours, run_barrier
from benchmarks.rollout.schedule_workload import REASONING, Script, Waits


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder, 0)
    return Script(folder, REASONING)


@pytest.fixture(scope="module")
def batch(script):
    return Batch(script, script.problems(0, 2), Waits(0, hanging=False))


class OneHangs(Waits):
    """The first call of the first problem's first root hangs, once."""

    def seconds(self, tool, problem, call, issue):
        if (problem.id, call, issue) == ("b0p0", "0:0", 0):
            return None
        return super().seconds(tool, problem, call, issue)


def test_both_sides_do_the_same_work_when_supplements_do_not_branch(batch):
    ours, barrier = grow_ours(batch), run_barrier(batch, supplements_branch=False)
    assert (ours.done.work.written, ours.done.calls) == (barrier.work.written, barrier.calls)
    assert ours.done.seconds < barrier.seconds


def test_a_hanging_call_costs_the_barrier_its_timeout_and_us_a_deadline_at_most(script, batch):
    hanging = Batch(script, batch.problems, OneHangs(0, hanging=False))
    assert run_barrier(hanging, False).seconds > run_barrier(batch, False).seconds + 50
    assert grow_ours(hanging).done.seconds < grow_ours(batch).done.seconds + 11


@pytest.mark.parametrize("book", [FirstComeBook, QuotaBook])
def test_the_other_books_spend_the_whole_budget_without_waits(batch, book):
    grown = grow_ours(batch, book=book)
    assert [len(tree.trajectories) for tree in grown.trees] == [N, N]
    assert set(grown.waits) == {0.0}


def test_first_come_serves_in_the_order_of_arrival():
    book = FirstComeBook(max_depth=3, fanout=2)
    for root in range(3):
        book.start_root((root,))
    book.open(3)
    book.resolve((2,), 1, 2)
    book.resolve((0,), 1, 2)
    assert [(branch.key, branch.children) for branch in book.allocate().branches] == [((2,), 2), ((0,), 1)]


def test_a_share_is_halved_with_the_branch_and_its_rest_starts_from_the_prompt():
    book = QuotaBook(max_depth=3, fanout=1)
    for root in range(2):
        book.start_root((root,))
    book.open(7)
    book.resolve((0,), 1, 1)
    (branch,) = book.allocate().branches
    assert branch.child_keys == ((0, 1, 1),)
    book.finish((0,))
    assert book.allocate().top_ups == 2
    book.finish((0, 1, 1))
    assert book.allocate().top_ups == 1
    book.finish((1,))
    assert book.allocate().top_ups == 3
