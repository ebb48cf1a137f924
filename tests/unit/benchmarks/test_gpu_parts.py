"""The parts of `make gpu` that need another process, other kernels or a server: whole on a CPU, at tiny sizes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.gpu import attention_rows, block_rows, card_rows, graph_rows, handover_rows, vllm_rows
from benchmarks.gpu.__main__ import print_figures, run_part
from benchmarks.gpu.engine_rows import Load
from benchmarks.gpu.models import SERVED, ModelSizes, learner_in, random_model
from benchmarks.gpu.parts import BUDGET, PARTS, seconds_together
from benchmarks.gpu.update_rows import TreeRow
from benchmarks.harness.tiny_model import VOCAB_SIZE, write_tiny_tokenizer

from ramify.chat.tokenizer import ChatTokenizer
from ramify.engines.local import LocalEngine
from ramify.learner.tree_attention import TreeAttention
from ramify.modeling.load import save_model
from ramify.sampler.publisher import SharedPublisher

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
TINY = ModelSizes("tiny", hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocabulary=VOCAB_SIZE)
SHORT = TreeRow("short", trajectories=4, seed=0, token_budget=200, shorter=16)
LOAD = Load(sequences=3, prompt=9, written=5)


def by_row(figures):
    """Figures by row, of which each says what it proves."""
    rows = {figure.row: figure for figure in figures}
    assert all(figure.proves for figure in rows.values())
    return rows


@pytest.fixture(scope="module")
def learner():
    return learner_in(random_model(TINY, "cpu"), torch.float32)


def test_attention_backward_is_that_of_a_dense_mask():
    def plan(segments, device):
        return TreeAttention(segments, device, torch.float32, 0)

    error = attention_rows.gradient_error(plan, TINY, SHORT, CPU, torch.float32)
    assert error.met
    assert 0 < error.value < 1e-5
    assert attention_rows.backward_seconds(plan, TINY, SHORT, CPU, torch.float32).value > 0


def test_a_static_step_beside_itself():
    rows = by_row(graph_rows.graph_steps(random_model(TINY, "cpu"), TINY, LOAD))
    assert rows["graphs.tiny.difference"].met
    assert rows["graphs.tiny.gain"].value > 0


def test_one_block_is_the_difference_of_three_and_one():
    rows = by_row(block_rows.block(TINY, SHORT, "cpu", torch.float32))
    seconds = rows["block.tiny.seconds"].settings["seconds_by_layers"]
    assert rows["block.tiny.seconds"].value == pytest.approx((seconds[3] - seconds[1]) / 2)
    assert rows["block.tiny.memory"].value == 0.0


@pytest.mark.integration
def test_compiled_blocks_have_the_gradients_of_plain_ones():
    # Traced and run as they are: a compiler for the CPU would take minutes.
    tree = replace(SHORT, trajectories=2, token_budget=10_000)
    rows = by_row(block_rows.compiled(TINY, tree, "cpu", torch.float32, backend="eager", layers=1))
    assert rows["compile.tiny.error"].met
    assert rows["compile.tiny.gain"].value > 0


@pytest.mark.integration
def test_a_second_process_takes_and_gives_back():
    rows = by_row(card_rows.turns(TINY, SHORT, CPU, torch.float32, taken=1000))
    assert rows["card.context"].met
    assert len(rows["card.kept"].settings["losses"]) == 3


@pytest.mark.integration
def test_a_folder_reaches_another_process_bit_for_bit(learner):
    rows = by_row(handover_rows.through_folder(learner, TINY, CPU))
    assert rows["handover.folder.changed"].met
    assert rows["handover.folder.changed"].settings["tensors"] > 20
    assert rows["handover.folder.tiny"].value > 0


def test_buckets_are_broadcast_as_they_are(learner):
    class Group:
        """A group of one, in which a broadcast changes nothing."""

        def __init__(self, group, size, seconds):
            assert (group, size, seconds > 0) == (b"id", 1, True)
            self.has_joined = False

        @staticmethod
        def new_id():
            return b"id"

        def join(self):
            self.has_joined = True

        def broadcast(self, tensor):
            assert self.has_joined
            assert tensor.dtype == torch.uint8

        def abort(self):
            pass

    (figure,) = handover_rows.over_nccl(learner, TINY, Group)
    assert figure.settings["changed"] == 0
    assert figure.proves


def test_turns_with_an_engine_of_this_process(learner, tmp_path):
    write_tiny_tokenizer(tmp_path, 0)
    tokenizer = ChatTokenizer(tmp_path)
    engine = LocalEngine(learner.model, tokenizer, num_slots=3, context_tokens=20)
    rows = by_row(vllm_rows.turns(engine, SharedPublisher(engine), learner, TINY, SHORT, LOAD))
    assert rows["vllm.mismatch"].value < 1e-4
    assert [len(values) for values in rows["vllm.turn"].settings["seconds"].values()] == [1, 2, 2, 2]


def test_the_server_would_sleep_on_the_learners_card(tmp_path):
    small = replace(SERVED, hidden=64, intermediate=96, layers=1, heads=4)
    write_tiny_tokenizer(tmp_path / "model", 0)
    save_model(random_model(small, "cpu"), tmp_path / "model")
    info = vllm_rows.served_engine(tmp_path, Path(sys.executable)).info()
    assert info.shares_gpus
    assert info.weights_folder is not None
    assert info.vocab_size == VOCAB_SIZE


@pytest.mark.integration
def test_a_python_without_vllm_says_which_one_to_name():
    reasons = [vllm_rows.no_vllm(Path(python)) for python in (sys.executable, "/nowhere/python")]
    assert all(vllm_rows.PYTHON in reason for reason in reasons)


def test_the_estimates_fit_into_the_budget():
    assert seconds_together() == sum(part.seconds for part in PARTS.values()) <= BUDGET < 9 * 60
    assert all(part.why and part.proves for part in PARTS.values())


@pytest.mark.integration
def test_every_part_names_a_function_and_is_skipped_without_a_gpu():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(PARTS)
    assert all("skipped: no GPU" in line for line in lines[:-1])
    assert f"about {seconds_together()} s" in lines[-1]


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part.module])
def test_a_parts_function_is_there(name):
    module = __import__(PARTS[name].module, fromlist=["_"])
    assert callable(getattr(module, PARTS[name].function))


def test_a_failure_leaves_the_figures_before_it(capsys):
    def measure():
        yield vllm_rows.not_measured("first", "-", "it is there")
        raise RuntimeError("device lost")

    print_figures(measure, "all of it")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["row"], second["row"], second["proves"]) == ("first", "measure", "all of it")
    assert second["settings"]["not_measured"] == "RuntimeError: device lost"


@pytest.mark.integration
def test_a_part_that_hangs_is_stopped_and_its_figures_stay():
    figure = vllm_rows.not_measured("first", "-", "it is there").as_json
    code = f"import time; print({figure!r}, flush=True); time.sleep(600)"
    part, figures = run_part("hangs", ["-c", code], 10.0)
    assert part.exit is None
    assert [f.row for f in figures] == ["first"]
