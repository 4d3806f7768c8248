"""The Python API: runs that are a script's, a notebook's, and go on."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.commands.eval import function
from rlvr.errors import ConfigError, UserError
from tests.system.harness import ENVIRONMENT, Command, check_equal, metrics, num_lines, outcome, wait_until
from tests.system.harness import rlvr as command

EXAMPLES = Path(__file__).parents[2] / "examples"

ROWS = [{"question": f"{a} {b} max:", "answer": max(a, b)} for a in range(12) for b in range(12)]
OTHERS = [{"question": f"{a} {b} max:", "answer": max(a, b)} for a in range(20, 24) for b in range(20, 24)]
TINY: dict[str, Any] = {
    "model": {"name": "scratch_bpe", "hidden_size": 32, "num_layers": 1, "num_heads": 2, "vocabulary_size": 300},
    "warm_start": {"num_steps": 20, "batch_size": 16, "warmup_steps": 5, "final_phase_steps": 0},
    "rollout": {"prompts_per_step": 4, "group_size": 4, "max_completion_tokens": 4},
    "trainer": {"max_steps": 2, "warmup_steps": 0},
    "evaluation": {"num_examples": 8},
    "tracker": {"console": "none", "rollouts_every": 1},
}
"""A second of training."""


def right() -> Any:
    def reward(completion: str, answer: str) -> float:
        return float(completion.strip() == answer)

    return reward


@pytest.fixture(autouse=True)
def _here(here: Path) -> None:
    """Each test is in a folder of its own."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rlvr.Run:
    """A run on rows with a reward function that no import finds; nobody changes it."""
    with contextlib.chdir(tmp_path_factory.mktemp("api")):
        return rlvr.train(data=ROWS, reward=right(), run_dir="run", **TINY)


def test_a_run_tells_its_metrics_and_rollouts(run: rlvr.Run) -> None:
    assert (run.num_steps, run.finished) == (2, True)
    assert run.folder.is_absolute()
    assert (run.final / "model.safetensors").is_file()
    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert 0.0 <= run.metrics[-1]["eval/jsonl/accuracy_low"] <= run.metrics[-1]["eval/jsonl/accuracy"] <= 1.0
    episodes = run.rollouts()
    assert len(episodes) == len(run.rollouts(1)) == 16
    assert episodes != run.rollouts(1)
    assert run.metrics[1]["reward/mean"] == pytest.approx(sum(e.reward or 0.0 for e in run.rollouts(1)) / 16)
    for episode in episodes:
        text = episode.turns[0].completion.removesuffix("<eos>").strip()
        assert episode.reward == episode.reward_parts["custom"] == float(text == episode.answer)
    with pytest.raises(UserError, match=r"has rollouts of steps \[1, 2\], not 3: tracker\.rollouts_every"):
        run.rollouts(3)


def test_a_second_call_goes_on_and_equals_one_that_never_stopped(tmp_path: Path) -> None:
    call = {**TINY, "data": ROWS, "reward": right()}
    longer = {**TINY["trainer"], "max_steps": 4}
    whole = rlvr.train(**{**call, "trainer": longer}, run_dir="whole")
    rlvr.train(**call, run_dir="parts")
    again = rlvr.train(run_dir="parts", resume=True, reward=call["reward"], trainer={"max_steps": 3})
    assert (again.num_steps, again.finished) == (3, True)
    again = rlvr.train(**{**call, "trainer": longer}, run_dir="parts", resume=True)
    assert again.num_steps == 4
    left, right_ = outcome(tmp_path / "parts"), outcome(whole.folder)
    for row in (*left.numbers, *right_.numbers):
        for name in [name for name in row if name.startswith("eval/")]:
            del row[name]  # the last step of each call is evaluated, too
    check_equal(left, right_)


Capture = pytest.CaptureFixture[str]


def test_an_evaluation_repeats_the_runs_own(run: rlvr.Run, capsys: Capture) -> None:
    found = rlvr.evaluate(run)
    assert list(found) == ["jsonl"]
    own = {name: value for name, value in run.metrics[-1].items() if name.startswith("eval/")}
    assert dict(found["jsonl"].metrics) == own
    assert len(found["jsonl"].records) == 8
    assert "held-out examples from" in capsys.readouterr().err


def test_an_evaluation_by_folder_needs_the_function_again(run: rlvr.Run) -> None:
    with pytest.raises(ConfigError, match="was given in Python, which no other program can import: give it again"):
        rlvr.evaluate(run.folder)
    found = rlvr.evaluate(run.folder, reward=right(), num_examples=3, samples_per_example=2)["jsonl"]
    assert {record.sample_index for record in found.records} == {0, 1, 2}
    assert 0.0 <= found.metrics["eval/jsonl/pass_at_2_low"] <= found.metrics["eval/jsonl/pass_at_2_high"] <= 1.0


def test_an_evaluation_on_other_rows_takes_all_of_them(run: rlvr.Run, capsys: Capture) -> None:
    found = rlvr.evaluate(run, data=OTHERS)["jsonl"]
    assert sorted(record.prompt for record in found.records) == sorted(row["question"] for row in OTHERS)
    assert "also held out" not in capsys.readouterr().err


def test_an_evaluation_on_the_training_rows(run: rlvr.Run, capsys: Capture) -> None:
    found = rlvr.evaluate(run, data=ROWS)["jsonl"]
    assert len(found.records) == len(ROWS)
    assert "144 held-out examples from" in capsys.readouterr().err
    found = rlvr.evaluate(run.final, task="jsonl", data=ROWS[:5], reward=right(), rollout={"max_completion_tokens": 4})
    assert len(found["jsonl"].records) == 5


def test_a_stopped_evaluation_ends_at_its_next_answer(run: rlvr.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "in_a_thread", lambda work: work(lambda: True))
    with pytest.raises(function._StoppedError):
        rlvr.evaluate(run)


def test_nothing_to_train_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="every training example is also held out, or there is none to train on") as one:
        rlvr.train(data=OTHERS, eval_data=OTHERS, reward=right(), run_dir="none", **TINY)
    assert [Path(entry.path).name for entry in one.traceback] == ["test_api.py", "errors.py"]
    assert not (tmp_path / "none").exists()


def test_the_traceback_of_a_wrong_setting_ends_in_the_call() -> None:
    with pytest.raises(ConfigError, match=r"there is no key trainer\.max_step; did you mean") as one:
        rlvr.train(trainer={"max_step": 1})
    lines = traceback.format_exception(one.value)
    assert len(lines) == 4, lines  # the heading, this line, the door's, and the sentence
    assert "there is no key" in lines[-1]


def test_rows_of_a_function(tmp_path: Path) -> None:
    def rows(size: int) -> Any:
        for a in range(size):
            yield f"{a} {a + 1} max:", str(a + 1)

    found = rlvr.train(data=rows, task={"settings": {"size": 40}, "metric": "exact"}, run_dir="run", **TINY)
    assert found.finished
    assert "reward/correct" in found.metrics[-1]
    assert rlvr.evaluate(found, num_examples=2)["generator"].metrics["eval/generator/num_examples"] == 2


def test_the_command_says_what_it_cannot_do_with_such_a_run(run: rlvr.Run, tmp_path: Path) -> None:
    done = command("eval", str(run.folder), cwd=tmp_path)
    assert done.code == 2
    assert "is a function that was given in Python" in done.err
    assert done.err.count("\n") == 1


# ------------------------------------------------------------------------------------------------------- programs


BEGUN = """
with open("ran", "a") as file:
    file.write("begun ")
"""


@pytest.mark.long
def test_the_script_of_ten_lines(tmp_path: Path) -> None:
    """The README's lines are the script. It has no guard for `__main__`, and nothing runs it a second time."""
    text = (EXAMPLES / "train_in_ten_lines.py").read_text()
    assert f"```python\n{text[text.index('import rlvr') :]}```" in (EXAMPLES.parent / "README.md").read_text()
    assert "__main__" not in text
    (tmp_path / "script.py").write_text(text.replace("import rlvr\n", f"import rlvr\n\n{BEGUN}", 1))
    done = subprocess.run(
        [sys.executable, "script.py"], env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "begun "
    lines = done.stdout.splitlines()
    first, last = map(float, re.findall(r"\d\.\d\d", lines[0]))
    assert last > first + 0.2
    assert re.fullmatch(r"held-out accuracy \d\.\d\d, pass@4 \d\.\d\d", lines[1])
    assert len(lines) == 2


SLOW = """
import rlvr

def reward(completion, answer):
    return float(len(completion))

rows = [{"question": f"{a} {b} max:", "answer": max(a, b)} for a in range(12) for b in range(12)]
try:
    rlvr.train(data=rows, reward=reward, run_dir="run", **TINY)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_finishes_the_step_saves_and_is_raised(tmp_path: Path) -> None:
    longer = {**TINY, "trainer": {"max_steps": 100_000, "checkpoint_every": None}, "evaluation": {"every": 100_000}}
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SLOW.replace("**TINY", f"**{longer!r}"))
    process = Command(log=tmp_path / "err", out=out, cwd=tmp_path, script=script, environment=ENVIRONMENT)
    wait_until(lambda: num_lines(tmp_path / "run") > 3)
    process.send(signal.SIGINT)
    assert (process.wait(), out.read_text()) == (0, "interrupted\n"), process.err
    assert "stopping after this step" in process.err
    steps = int(metrics(tmp_path / "run")[-1]["step"])
    assert (tmp_path / "run" / "checkpoints" / f"step_{steps:06d}").is_dir()

    # Named as in the script, where the module was `__main__`.
    def reward(completion: str, answer: str) -> float:
        return float(len(completion))

    reward.__module__, reward.__qualname__ = "__main__", "reward"
    again = rlvr.train(run_dir="run", resume=True, reward=reward, trainer={"max_steps": steps + 1})
    assert again.num_steps == steps + 1


@pytest.mark.long
def test_the_notebook_runs_inside_its_event_loop(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    rewards = [float(found) for found in re.findall(r"step +\d+  reward (\d\.\d\d)", text)]
    assert len(rewards) == 10
    assert rewards[-1] > rewards[0]
    assert len(re.findall(r"reward [01]  advantage [+-]\d\.\d\d", text)) == 8
    assert len(re.findall(r"^\w+ +[\d.]+%   [\d.]+% to [\d.]+%$", text, re.MULTILINE)) == 4
    assert (tmp_path / "runs" / "latest" / "final").is_dir()
