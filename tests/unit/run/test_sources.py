"""Which folder a MODEL argument means."""

from pathlib import Path

import pytest

from rlvr.config.compose import to_run_yaml
from rlvr.errors import ConfigError, UserError
from rlvr.run.sources import inference_config, own_config, run_of, servable, weights_of, with_absolute_model
from tests.unit.core.tiny import tiny_config


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty run in the present folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.yaml").touch()
    return Path("runs/a")


@pytest.mark.parametrize("inside", ["", "final", "warm_start", "checkpoints/step_000010", "checkpoints/x/model"])
def test_the_run_of_a_folder_inside_of_it(run: Path, inside: str) -> None:
    assert run_of(run / inside) == run.absolute()
    assert run_of(run / "rollouts" / inside) is None


def test_the_weights_of_a_run(run: Path) -> None:
    """Its final model; before there is one, its newest checkpoint."""
    with pytest.raises(UserError, match=r"neither final/ nor a checkpoint yet: .* resume=true\.$"):
        weights_of("runs/a")
    (run / "warm_start").mkdir()
    with pytest.raises(UserError, match=r"or use runs/a/warm_start\.$"):
        weights_of("runs/a")
    for step in (2, 10):
        (run / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    assert weights_of("runs/a") == "runs/a/checkpoints/step_000010"
    (run / "final").mkdir()
    assert weights_of("runs/a") == servable("runs/a") == "runs/a/final"
    with pytest.raises(ConfigError, match="is an endpoint already"):
        servable("openai:http://127.0.0.1:1/v1#x")


def test_a_name_with_one_slash_may_be_of_the_hub(run: Path) -> None:
    assert weights_of("Qwen/Qwen3") == "Qwen/Qwen3"
    assert weights_of("gpt2") == "gpt2"
    for folder in ("runs/b", "x/y/z", str(run.absolute() / "b")):  # there is a folder runs, and no hub has three parts
        with pytest.raises(UserError, match="there is no folder"):
            weights_of(folder)
    with pytest.raises(UserError, match=r"did you mean runs/a\?"):
        weights_of("runs/aa")


def test_models_of_a_run_keep_their_place(run: Path) -> None:
    (run / "final").mkdir()
    of = ("algorithm=distill", "algorithm.reward_coef=1", "rollout.group_size=8")
    for teacher, found in (
        ("runs/a", str(run.absolute() / "final")),
        ("start", "start"),
        ("openai:http://127.0.0.1:1/v1#x", "openai:http://127.0.0.1:1/v1#x"),
        ("Qwen/Qwen3", "Qwen/Qwen3"),
    ):
        config = with_absolute_model(tiny_config(*of, f"algorithm.teacher='{teacher}'"))
        assert config.algorithm.teacher == found  # type: ignore[attr-defined]


def saved(folder: Path, *overrides: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_run_yaml(tiny_config(*overrides, name="rpn_test")))
    return folder


def test_a_model_is_evaluated_with_the_settings_of_its_run(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", "evaluation.num_examples=7", "tracker.report_to=[tensorboard]")
    for model in (run, run / "final"):
        found = inference_config(str(model), ["evaluation.samples_per_example=3"])
        assert (found.evaluation.num_examples, found.evaluation.samples_per_example) == (7, 3)
        assert found.tracker.report_to == ()  # nothing is reported
    assert own_config(str(tmp_path)) is None
    assert own_config("openai:http://127.0.0.1:1/v1#x") is None
    with pytest.raises(ConfigError, match="openai:nothing"):
        own_config("openai:nothing")


def test_another_task_has_its_own_settings_unless_the_run_evaluates_it(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", "evaluation.num_examples=7", "+evaluation.also.twin.task=rpn")
    assert inference_config(str(run), [], task="two_hop").evaluation.num_examples == 200
    found = inference_config(str(run), ["rollout.temperature=0.5"], task="twin")
    assert (found.task.name, found.evaluation.num_examples, found.rollout.temperature) == ("rpn", 7, 0.5)
    assert inference_config("Qwen/Qwen3", [], task="two_hop").task.name == "two_hop"


def test_a_model_without_a_run_needs_a_task(tmp_path: Path) -> None:
    for model in ("openai:http://127.0.0.1:1/v1#x", str(tmp_path)):
        with pytest.raises(ConfigError, match="is no run folder and so has no task of its own: add --task"):
            inference_config(model, [])
    with pytest.raises(
        UserError, match=r"there is no folder .*none: name a run folder, or a Hub id with --task"
    ) as error:
        inference_config(str(tmp_path / "none"), [])
    assert not isinstance(error.value, ConfigError)


def test_a_model_folder_is_made_absolute_and_a_hub_id_is_not(run: Path) -> None:
    (run / "final").mkdir()
    Path("own").mkdir()
    for name, found in (
        ("runs/a", str(run.absolute() / "final")),
        ("own", str(Path("own").absolute())),
        ("x/y", "x/y"),
    ):
        config = with_absolute_model(tiny_config("model=hf", f"model.name_or_path={name}", name="gsm8k"))
        assert config.model.pretrained is not None
        assert config.model.pretrained.name_or_path == found
    scratch = tiny_config(name="rpn_test")
    assert with_absolute_model(scratch) == scratch
