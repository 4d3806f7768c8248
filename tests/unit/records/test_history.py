import re
from pathlib import Path

from rlvr.records.history import read_history
from tests.unit.report.runs import save_run


def test_a_whole_run(tmp_path: Path) -> None:
    history = read_history(save_run(tmp_path / "run"))
    assert ([row["step"] for row in history.rows], history.notes) == ([1, 2, 3], [])
    assert (history.name, history.step, history.setting("task.name")) == ("run", 3, "rpn")
    assert history.setting("task.name.no") is None
    assert history.penalties == frozenset()


def test_pitfall_37_damaged_lines_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    path = save_run(tmp_path / "run") / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = [b"{broken\n", b'{"step": "2"}\n', b'{"step": 2, "x": "y"}\n', b"\xff\n"]
    path.write_bytes(b"".join([lines[0], *damaged, lines[2], b'{"step": 9, "x": 1%s}\n' % (b"0" * 400)]))
    history = read_history(path.parent)
    assert [row["step"] for row in history.rows] == [1, 3]
    assert [re.findall(r"line (\d+), ", note) for note in history.notes] == [["2"], ["3"], ["4"], ["5"], ["7"]]
    assert str(path) in history.notes[0]


def test_the_line_that_is_being_written_is_not_damaged(tmp_path: Path) -> None:
    path = save_run(tmp_path / "run") / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    history = read_history(path.parent)
    assert ([row["step"] for row in history.rows], history.notes) == ([1, 2], [])


def test_of_a_step_that_stands_twice_the_last_line_counts(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", metrics={1: {"reward/mean": 0.1}, 2: {"reward/mean": 0.2}})
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 1, "reward/mean": 0.9}\n')
    assert [(row["step"], row["reward/mean"]) for row in read_history(run).rows] == [(1, 0.9), (2, 0.2)]


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    for text in ("a: [1", "- 1\n- 2", "${x}: {"):
        (run / "config.yaml").write_text(text)
        history = read_history(run)
        assert (history.text, history.settings) == (text, {})
        assert "config.yaml is damaged" in history.notes[0]
    for reward in ("", "reward: x", "reward: {name: rpn, type: boxed}", "reward: {parts: {a: 1, b: {type: gone}}}"):
        (run / "config.yaml").write_text(f"task: {{name: old}}\n{reward}\n")  # of another version: no complaint
        history = read_history(run)
        assert (history.setting("task.name"), history.notes, history.penalties) == ("old", [], frozenset())
