"""`rlvr train`: overrides, `--cfg job`, signals, and the result of a run."""

import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from rlvr import registry
from rlvr.cli.main import main
from rlvr.commands.train import body, choices
from rlvr.commands.train.summary import summary
from rlvr.config.compose import load_config, to_run_yaml, to_yaml
from rlvr.engines.settings import VllmEngineSettings
from rlvr.errors import UserError
from rlvr.run.run_folder import changed_settings
from tests.unit.cli.conftest import FakeResult, FakeTraining, Rlvr


def test_cfg_job_prints_a_configuration_that_can_be_run(training: FakeTraining, tmp_path: Path, rlvr: Rlvr) -> None:
    shown = rlvr("train", "--cfg", "job", "algorithm=gspo", "seed=9")
    wanted = load_config(["algorithm=gspo", "seed=9"])
    assert (shown.code, shown.out, shown.err) == (0, to_yaml(wanted), "")
    assert training.configs == []
    (tmp_path / "config.yaml").write_text(shown.out)
    assert rlvr("train", "--config-dir", tmp_path, "--config-name", "config").code == 0
    assert training.configs == [wanted]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_after_the_step(number: int, code: int, training: FakeTraining) -> None:
    training.act = lambda config: signal.raise_signal(number)
    before = signal.getsignal(number)
    assert main(["train"]) == code
    assert signal.getsignal(number) is before


def test_a_second_signal_stops_at_once(training: FakeTraining) -> None:
    def act(config: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("still running")

    training.act = act
    assert main(["train"]) == 130


def test_the_result_of_a_run_is_printed(training: FakeTraining, rlvr: Rlvr) -> None:
    assert rlvr("train").out.splitlines() == [
        "rpn: held-out accuracy 0.250 -> 0.750 (95 % interval 0.700 to 0.800) in 40 steps",
        "model: run/final",
        "curve: run/metrics.jsonl",
        "try it: rlvr eval run",
    ]


@pytest.mark.parametrize(
    ("step", "num_steps", "line"),
    [
        (0, 50, "0.250 (95 % interval 0.200 to 0.300) at step 0; 50 steps made, not evaluated since"),
        (30, 50, "0.250 -> 0.250 (95 % interval 0.200 to 0.300), at step 30 in 50 steps"),
        (1, 1, "0.250 -> 0.250 (95 % interval 0.200 to 0.300) in 1 step"),
    ],
)
def test_a_stopped_run_says_the_step_of_its_accuracy(
    step: int, num_steps: int, line: str, training: FakeTraining, rlvr: Rlvr
) -> None:
    metrics = {"step": step, "eval/rpn/accuracy": 0.25, "eval/rpn/accuracy_low": 0.2, "eval/rpn/accuracy_high": 0.3}
    training.result = FakeResult(folder=Path("a run"), num_steps=num_steps, metrics=metrics)
    training.act = lambda config: signal.raise_signal(signal.SIGTERM)
    ran = rlvr("train")
    assert ran.code == 143
    out = ran.out.splitlines()
    assert out[0] == f"rpn: held-out accuracy {line}"
    assert shlex.split(out[1].partition("train ")[2]) == ["run_dir='a run'", "resume=true"]


@pytest.mark.slow
def test_a_resumed_run_may_have_another_engine(training: FakeTraining, tmp_path: Path) -> None:
    run, url = tmp_path / "run", "http://127.0.0.1:1"
    run.mkdir()
    started = load_config(["model.head_dim=32", "trainer.max_steps=7"], config_name="rpn_test")
    (run / "config.yaml").write_text(to_run_yaml(started))
    words = ["train", f"run_dir={run}", "resume=true"]
    assert main([*words, "engine=vllm", f"engine.urls=[{url}]"]) == 0
    assert main([*words, "engine=local", "engine.max_batch_size=3"]) == 0
    served, local = training.configs
    assert isinstance(served.engine, VllmEngineSettings)
    assert served.engine.urls == (url,)
    assert changed_settings(started, served) == changed_settings(started, local) == {}
    assert local.engine.max_batch_size == 3


@pytest.mark.slow
def test_a_resumed_run_keeps_its_choices(training: FakeTraining, tmp_path: Path, rlvr: Rlvr) -> None:
    started = load_config(["model.name_or_path=somewhere"], config_name="gsm8k")
    (tmp_path / "config.yaml").write_text(to_run_yaml(started))
    words = [f"run_dir={tmp_path}", "resume=true"]
    refused = rlvr("train", *words, "reward=numeric")
    assert refused.code == 2
    assert f"(The run in {tmp_path} goes on with its own choices if none is given.)" in refused.err
    assert rlvr("train", *words).code == 0
    (config,) = training.configs
    assert config.task == started.task


def test_an_impossible_run_folder_is_refused_before_training(
    training: FakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("")
    assert main(["train", "run_dir=file"]) == 2
    assert main(["train", "run_dir=file/deep"]) == 2
    assert main(["train", "-m", "seed=1,2", "run_dir=file"]) == 2
    assert main(["train", "run_dir=used"]) == 2
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["train"]) == 1
    assert training.configs == []
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "rlvr: error: run_dir=file: file is a file; choose another run_dir."
    assert said[1:3] == [
        f"rlvr: error: run_dir=file/deep: {tmp_path / 'file'} is a file; choose another run_dir.",
        "rlvr: error: run_dir=file: file is a file; choose another run_dir.",
    ]
    assert "run_dir=used exists and is not empty: add resume=true" in said[3]
    assert said[4] == "rlvr: error: Cannot write runs: permission denied; choose another run_dir."


def test_help_lists_every_configuration_and_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    for file in (Path(choices.PACKAGE) / "conf").glob("*.yaml"):
        line = next(line for line in out.splitlines() if line.startswith(f"  {file.stem} "))
        assert len(line) <= 120, line
    listed = " ".join(out.partition("groups (")[2].split())
    for group in choices.GROUPS:
        shown = {registry.name_of(component) for component in registry.every(group).values()}
        assert f"{group}= {', '.join(sorted(shown))}" in listed


@pytest.mark.parametrize("metrics", [False, True])
def test_a_new_run_that_fails_before_its_first_step_keeps_the_reason(
    metrics: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was made before keeps what it has: it only was not gone on with."""

    def lost(*args: Any) -> Any:
        raise UserError("the warm start broke.")

    monkeypatch.setattr(body, "started_policy", lost)
    monkeypatch.chdir(tmp_path)
    config = load_config(["run_dir=run", "tracker.console=none", "tracker.report_to=[]"], config_name="rpn_test")
    if metrics:
        with pytest.raises(UserError):
            body.train(config)
        (tmp_path / "run/error.txt").unlink()
        (tmp_path / "run/metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
        config = config.model_copy(update={"resume": True})
    with pytest.raises(UserError, match="the warm start broke"):
        body.train(config)
    assert (tmp_path / "run/error.txt").is_file() == (not metrics)
    assert metrics or "the warm start broke." in (tmp_path / "run/error.txt").read_text()


PRETRAINED = ("model=hf", "model.name_or_path=some/model", "warm_start.enabled=true")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ([], "evaluation: every 10 steps, 500 examples"),
        (["evaluation.every=null"], "evaluation: none"),
        (["trainer.max_steps=0", "trainer.checkpoint_every=null"], "training: none (trainer.max_steps=0)"),
        ([*PRETRAINED], "warm start: demonstrations, "),
        (
            [*PRETRAINED, "warm_start.source=own", "warm_start.samples=3"],
            "warm start: 3 samples of each question, the ri",
        ),
        (
            ["rollout.max_staleness=2"],
            "rollouts: sampled while the trainer works, by weights at most 2 updates old, corr",
        ),
        (["reward.parts.boxed.weight=0"], "reward: 1 x correct; measured only: boxed"),
    ],
)
def test_a_run_says_first_what_it_will_do(settings: list[str], line: str) -> None:
    found = summary(load_config(settings))
    assert [one for one in found if one.startswith(line)], found
    assert any(one.startswith("warm start") for one in found) == ("warm_start.enabled=true" in settings)
    assert any(one.startswith("rollouts") for one in found) == ("rollout.max_staleness=2" in settings)
    assert found[0] == "task: rpn (generated)"
