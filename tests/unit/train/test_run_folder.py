from ramify.obs.files import replace_lines
from ramify.obs.metrics import read_metrics
from ramify.train.run_folder import RunFolder


def test_what_a_kill_left_of_later_steps_is_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.metrics.append(step, {"loss": 0.5})
        replace_lines(folder.trees(step), [])
        replace_lines(folder.timing(step), [])
    folder.trees(4).with_name("000004.jsonl.part").write_bytes(b"{")
    folder.rewind(1)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]
    for name in ("trees", "timing"):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["000001.jsonl"]
