"""`rlvr replay`: a step once more is equal, a planted difference is found, other updates are as made by hand."""

import gzip
import importlib
import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import rlvr
from rlvr.commands.replay.body import replay
from rlvr.commands.train.body import train
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import ConfigError, UserError
from rlvr.lines import override_lines
from rlvr.report.run import write_run_report
from rlvr.research.repeat import find_step, repeated
from rlvr.run.sources import own_config
from tests.system.harness import SMALL, Cli, metrics, pretrained, run_train, split
from tests.unit.report.runs import chunk_of
from tests.variants import variants

KEPT = (
    *("trainer.max_steps=6", "trainer.checkpoint_every=2", "trainer.keep_last=9", "evaluation.every=3"),
    "tracker.rollouts_max_groups=null",
)
SETTINGS = {
    "grpo": (),
    "ppo": ("algorithm=ppo", "rollout.prompts_per_step=16", "rollout.group_size=1", "algorithm.kl_coef=0.05"),
    "dapo": ("algorithm=dapo", "trainer.schedule=cosine", "tracker.rollouts_max_groups=2"),
}
ROOT = Path(__file__).parents[2]
TORCH = version("torch")  # torch.__version__ may also say for which CUDA it was built


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs with checkpoints 0, 2, 4 and 6; the first starts from its own warm_start/."""
    root = tmp_path_factory.mktemp("replayed")
    return {
        name: run_train(root / name, *SMALL, *pretrained(model), *KEPT, *words).folder
        for name, words in SETTINGS.items()
    }


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs["grpo"], tmp_path / "run"))


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------------------------ equal


@pytest.mark.parametrize("settings", variants(SETTINGS, always=2))
def test_every_step_is_equal_and_the_run_is_only_read(settings: str, runs: dict[str, Path]) -> None:
    folder = runs[settings]
    before = contents(folder)
    for step in (1, 2, 4, 6):
        found = replay(str(folder), step)
        assert found.equal, [str(one) for one in found.differences]
        assert found.start == (step - 1) // 2 * 2
        assert found.num_recorded == (8 if settings == "dapo" else found.num_episodes)
        assert bool(found.notes) == (settings == "dapo")
    assert contents(folder) == before


def test_from_the_warm_start(first_run: Path, cli: Cli) -> None:
    done = cli.ok("replay", first_run, "--step", "2")
    assert done.out.startswith(
        f"step 2 of {first_run}, from the first weights: equal\ncompared: 16 episodes by token, "
    )


def test_a_run_that_is_still_written(run: Path, cli: Cli) -> None:
    """Its last line is incomplete, a checkpoint half there, and the folder locked and read-only."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "loss')
    (run / "checkpoints/.step_000008.tmp-1").mkdir()
    shutil.rmtree(run / "final")
    import fcntl

    with (run / ".lock").open("a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run.chmod(0o555)
        try:
            assert json.loads(cli.ok("replay", run, "--step", "5", "--json").out)["equal"]
        finally:
            run.chmod(0o755)
    assert (run / "checkpoints/.step_000008.tmp-1").is_dir()
    cli.refuses(1, ["replay", run, "--step", "7"], "has steps 1 to 6, so there is no step 7")


# -------------------------------------------------------------------------------------------------------- different


def in_rollouts(edit: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change episode 3 of step 4."""

    def change(run: Path) -> None:
        path = run / "rollouts/step_000004.jsonl.gz"
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        edit(lines[3])
        path.write_bytes(gzip.compress("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()))

    return change


def in_metrics(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows[4][name] += 1.0
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return change


def other_weights(run: Path) -> None:
    """As after an update that went another way: the checkpoint before belongs to another step."""
    shutil.rmtree(run / "checkpoints/step_000002")


PLANTED = {
    "sampling": (
        in_rollouts(lambda one: one["turns"][0]["completion_ids"].__setitem__(0, 1)),
        "episode 3, turn 0, token 0",
    ),
    "scores": (in_rollouts(lambda one: one.update(reward=7.0)), "episode 3, reward: recorded 7.0, replayed "),
    "logprobs": (
        in_rollouts(lambda one: one["rows"][0]["trainer_logprobs"].__setitem__(-1, -9.0)),
        "episode 3, row 0, token ",
    ),
    "advantages": (
        in_rollouts(lambda one: one["rows"][0]["advantages"].__setitem__(-1, -9.0)),
        "episode 3, row 0, token ",
    ),
    "update": (in_metrics("policy/grad_norm"), "policy/grad_norm: recorded 1."),
}


@pytest.mark.parametrize("stage", PLANTED)
def test_a_planted_difference_is_named(stage: str, run: Path, cli: Cli) -> None:
    plant, said = PLANTED[stage]
    plant(run)
    done = cli("replay", run, "--step", "4")
    assert done.code == 1
    assert done.out.splitlines()[0].endswith("from checkpoint 2: different")
    assert done.out.splitlines()[2].startswith(f"first difference in {stage}: ")
    assert said in done.out.splitlines()[2]
    assert cli.ok("replay", run, "--step", "3").out.splitlines()[0].endswith(": equal")


def of_config(old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / "config.yaml").read_text()
        assert old in text
        (run / "config.yaml").write_text(text.replace(old, new))

    return change


def in_start(old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / "starts.jsonl").read_text()
        assert text.count(old) == 1
        (run / "starts.jsonl").write_text(text.replace(old, new))

    return change


CHANGED = {
    "config": (
        of_config("adam_beta1: 0.9\n", "adam_beta1: 0.8\n"),
        "config.yaml was edited: trainer.adam_beta1 is",
    ),
    "library": (in_start(f'"torch":"{TORCH}"', '"torch":"2.0"'), f"torch is {TORCH}, and was"),
    "data": (in_start('"train":"', '"train":"other'), "the data of rpn changed: other training examples"),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_what_has_changed_since_the_run_is_said_first(kind: str, run: Path, cli: Cli) -> None:
    plant, said = CHANGED[kind]
    plant(run)
    done = cli("replay", run, "--step", "4")
    assert done.out.startswith(f"changed since the run: {said}")
    assert done.out.count("changed since the run") == 1
    assert json.loads(cli("replay", run, "--step", "4", "--json").out)["changed"][0].startswith(said)


def test_an_error_names_what_has_changed(run: Path, cli: Cli) -> None:
    in_start(f'"torch":"{TORCH}"', '"torch":"2.0"')(run)
    (run / "checkpoints/step_000002/tensors.safetensors").write_bytes(b"x")
    cli.refuses(1, ["replay", run, "--step", "4"], f"Perhaps because torch is {TORCH}, and was 2.0")


def test_a_run_of_an_older_version_says_nothing(run: Path) -> None:
    (run / "starts.jsonl").unlink()
    found = replay(str(run), 4)
    assert (found.equal, found.changed) == (True, [])


def test_without_a_rollout_file_the_metrics_are_compared(run: Path, cli: Cli) -> None:
    (run / "rollouts/step_000004.jsonl.gz").unlink()
    done = cli.ok("replay", run, "--step", "4")
    assert "only its line of metrics.jsonl was compared" in done.err
    in_metrics("rollout/completion_tokens_mean")(run)
    assert "first difference in sampling: rollout/completion_tokens_mean" in cli("replay", run, "--step", "4").out


def test_an_earlier_checkpoint_serves_as_well(run: Path) -> None:
    other_weights(run)
    found = replay(str(run), 4)
    assert (found.equal, found.start) == (True, 0)


# ---------------------------------------------------------------------------------------------------------- what if


def by_hand(run: Path, model: Path, *, rate: float, dropped: int | None = None) -> dict[str, float]:
    """The first update of GRPO from the recorded tokens and rewards, in plain torch."""
    lines = gzip.decompress((run / "rollouts/step_000001.jsonl.gz").read_bytes()).splitlines()
    episodes = [json.loads(line) for line in lines]
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    kept = [number for number in range(len(episodes)) if number != dropped]

    def logprobs(number: int) -> torch.Tensor:
        row = episodes[number]["rows"][0]
        ids, mask = torch.tensor(row["ids"]), torch.tensor(row["loss_mask"]).bool()
        every = network(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        return every.gather(1, ids[1:, None])[:, 0][mask[1:]]

    groups = {episodes[number]["group"] for number in kept}
    rewards = {g: [episodes[n]["reward"] for n in kept if episodes[n]["group"] == g] for g in groups}
    stats = {g: torch.tensor(values) for g, values in rewards.items()}
    before = [logprobs(number).detach() for number in range(len(episodes))]
    count = sum(len(before[number]) for number in kept)
    loss = torch.zeros(())
    for number in kept:
        group = stats[episodes[number]["group"]]
        advantage = (episodes[number]["reward"] - group.mean()) / (group.std() + 1e-4)
        ratio = (logprobs(number) - before[number]).exp()
        loss = loss - (ratio * advantage).sum() / count
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0).item()
    torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0).step()
    mean = sum(one["reward"] for one in episodes) / len(episodes)
    change = {True: [], False: []}
    with torch.no_grad():
        for number, one in enumerate(episodes):
            change[one["reward"] > mean].append(logprobs(number) - before[number])
    moved = {
        name: math.expm1(torch.cat(change[kind]).mean().item())
        for name, kind in (("rewarded", True), ("unrewarded", False))
    }
    return {"policy/grad_norm": norm} | {f"probability_change/{name}": value for name, value in moved.items()}


@pytest.mark.parametrize("kind", ["rate", "dropped"])
def test_what_if_as_by_hand(kind: str, first_run: Path) -> None:
    lines = gzip.decompress((first_run / "rollouts/step_000001.jsonl.gz").read_bytes()).splitlines()
    moving = next(number for number, line in enumerate(lines) if json.loads(line)["advantage"])
    changes, arguments = {
        "rate": ({"trainer.learning_rate": 0.003}, {"rate": 0.003}),
        "dropped": ({"drop": moving}, {"rate": 4e-4, "dropped": moving}),
    }[kind]
    found = rlvr.replay(first_run, 1, what_if=changes)
    assert found.equal
    assert found.what_if is not None
    for values, how in ((found.what_if.changed, arguments), (found.what_if.recorded, {"rate": 4e-4})):
        for name, value in by_hand(first_run, first_run / "warm_start", **how).items():
            assert values[name] == pytest.approx(value, rel=0.005, abs=1e-5), name
    differs = {"rate": "probability_change/rewarded", "dropped": "policy/grad_norm"}[kind]
    assert found.what_if.changed[differs] != pytest.approx(found.what_if.recorded[differs], rel=0.01)


GOING_ON = {
    "cosine": (
        (
            "trainer.schedule=cosine",
            "trainer.warmup_steps=2",
            "algorithm.num_minibatches=2",
            "trainer.max_grad_norm=0.5",
        ),
        [
            {"trainer.learning_rate": 5e-3},
            {"algorithm.kl_coef": 0.5, "algorithm.clip_high": 1e-3, "algorithm.num_epochs": 2},
            {"trainer.weight_decay": 0.1, "trainer.max_grad_norm": 0.01, "trainer.adam_beta2": 0.999},
        ],
    ),
    "a teacher that follows": (
        split("algorithm=distill algorithm.teacher=start algorithm.refresh_every=3 algorithm.reward_coef=1.0"),
        [{"trainer.learning_rate": 5e-3}],
    ),
}


@pytest.mark.parametrize("kind", variants(GOING_ON))
def test_a_setting_changes_what_a_run_would_have_done_that_goes_on_with_it(
    kind: str, model: Path, tmp_path: Path
) -> None:
    """To the last digit. The replay starts two steps earlier, from where the run's own settings still count."""
    words, changes = GOING_ON[kind]
    lasting = ("trainer.max_steps=5", "trainer.checkpoint_every=1", "trainer.keep_last=9", "trainer.learning_rate=1e-3")
    run = run_train(tmp_path / "run", *SMALL, *pretrained(model), *lasting, *words, "evaluation.every=9").folder
    early = Path(shutil.copytree(run, tmp_path / "early"))
    shutil.rmtree(early / "checkpoints/step_000003")
    for number, changed in enumerate(changes):
        other = Path(shutil.copytree(run, tmp_path / f"other-{number}"))
        shutil.rmtree(other / "final")
        for step in (4, 5):
            shutil.rmtree(other / f"checkpoints/step_{step:06d}")
        edited = load_config(override_lines(changed), config_name="config", config_dir=str(run))
        (other / "config.yaml").write_text(to_run_yaml(edited))
        again = ["run_dir=" + str(other), "resume=true"]
        train(load_config(again, config_name="config", config_dir=str(other)))
        found = rlvr.replay(early, 4, what_if=changed)
        assert found.what_if is not None
        assert found.start == 2
        row = next(row for row in metrics(other) if row["step"] == 4)
        wanted = {name: value for name, value in row.items() if name.startswith(("loss/", "policy/"))}
        got = {name: value for name, value in found.what_if.changed.items() if not name.startswith("probability")}
        assert got == wanted
        assert got != {name: found.what_if.recorded.get(name) for name in got}
    if kind == "a teacher that follows":
        with pytest.raises(ConfigError, match="would have copied another policy"):
            rlvr.replay(run, 4, what_if={"algorithm.refresh_every": 2})


WHAT_IFS = {
    "drop=[1,2]": lambda old, new: new["policy/trained_tokens"] < old["policy/trained_tokens"],
    "mask.1=all": lambda old, new: new["policy/trained_tokens"] < old["policy/trained_tokens"],
    "reward.0=5.0": lambda old, new: new["policy/grad_norm"] != old["policy/grad_norm"],
    "algorithm.num_epochs=3": lambda old, new: (old["policy/updates"], new["policy/updates"]) == (1, 3),
    "algorithm.kl_coef=0.5": lambda old, new: new["policy/reference_kl"] > 0 and "policy/reference_kl" not in old,
    "trainer.max_grad_norm=1e-4": lambda old, new: new["policy/grad_norm"] == old["policy/grad_norm"],
}


@pytest.mark.parametrize("change", WHAT_IFS)
def test_changes_show_in_the_metrics(change: str, runs: dict[str, Path], cli: Cli) -> None:
    found = json.loads(cli.ok("replay", runs["grpo"], "--step", "4", "--what-if", change, "--json").out)["what_if"]
    assert found["changes"] == [change]
    assert WHAT_IFS[change](found["recorded"], found["changed"])


def test_changes_are_shown_beside_what_was_recorded(runs: dict[str, Path], cli: Cli) -> None:
    assert "probability_change/rewarded" in cli.ok("replay", runs["grpo"], "--step", "4", "--what-if", "drop=[1,2]").out


# -------------------------------------------------------------------------------------------------------- influence


def test_influence_predicts_updates_without_an_episode(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.stats import spearmanr

    from rlvr.research.influence import influences

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    without_each = importlib.import_module("replay_steps").without_each
    sizes = ("rollout.prompts_per_step=16", "rollout.group_size=4", "trainer.max_steps=8")
    folder = run_train(tmp_path / "run", *SMALL, *pretrained(model), *sizes).folder
    config = own_config(str(folder))
    assert config is not None
    with repeated(config, find_step(folder, 8), {}, lambda done, total: None) as made:
        found = influences(made, lambda done, total: None)
        truth = without_each(made, [one.episode for one in found])
    assert [one.episode for one in found] == list(range(64))
    assert sum(abs(one.share) for one in found) == pytest.approx(1.0)
    assert spearmanr([one.change for one in found], truth)[0] >= 0.8


def test_influence_is_written_beside_the_run_and_shown_in_its_report(run: Path, cli: Cli, tmp_path: Path) -> None:
    assert "influence" not in chunk_of(write_run_report([run]).path.read_text(), "index")["columns"]
    before = contents(run)
    done = cli.ok("replay", run, "--step", "4", "--influence")
    path = tmp_path / "run.influence/step_000004.json"
    assert str(path) in done.out
    written = json.loads(path.read_text())
    assert (written["run"], written["step"], len(written["episodes"])) == ("run", 4, 16)
    assert contents(run) == before
    shares = [one["share"] for one in written["episodes"]]
    report = write_run_report([run])
    column = chunk_of(report.path.read_text(), "index")["columns"]["influence"]
    assert column[48:64] == pytest.approx(shares, rel=0.01)
    assert column[:48] == [None] * 48
    path.write_text("{")
    assert "is damaged and left out" in write_run_report([run]).notes[0]


# --------------------------------------------------------------------------------------------------------- bad input


BAD = {
    "no folder": (1, "runs/absent --step 1", "no run folder"),
    "no step": (1, "RUN --step 9", "has steps 1 to 6"),
    "step 0": (2, "RUN --step 0", "--step"),
    "no change": (2, "RUN --step 1 --what-if dorp=3", "drop=3, reward.3=0"),
    "sampling": (2, "RUN --step 1 --what-if rollout.temperature=2", "say drop=3"),
    "key": (2, "RUN --step 1 --what-if algorithm.clip_ratio=0.1", "algorithm.clip_ratio"),
    "without effect": (2, "RUN --step 1 --what-if trainer.keep_last=3", "was made so"),
    "episode": (2, "RUN --step 1 --what-if drop=99", "episodes 0 to 15, not 99"),
    "mask": (2, "RUN --step 1 --what-if mask.3=0", "none of these tokens was sampled"),
    "output": (2, "RUN --step 1 --output x.json", "add --influence"),
    "output inside": (2, "RUN --step 1 --influence --output RUN/x.json", "is inside the run"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name: str, runs: dict[str, Path], cli: Cli) -> None:
    code, words, said = BAD[name]
    done = cli("replay", *words.replace("RUN", str(runs["grpo"])).split())
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1, done.err


SPOILT = {
    "ranks": (of_config("strategy: single", "strategy: ddp"), "trainer.strategy=ddp"),
    "stale": (of_config("max_staleness: 0", "max_staleness: 1"), "rollout.max_staleness=1"),
    "no metrics": (lambda run: (run / "metrics.jsonl").unlink(), "it has no metrics.jsonl"),
    "damaged rollouts": (lambda run: (run / "rollouts/step_000004.jsonl.gz").write_bytes(b"x"), "is damaged"),
    "damaged checkpoint": (
        lambda run: (run / "checkpoints/step_000002/tensors.safetensors").write_bytes(b"x"),
        "is damaged",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_run_that_cannot_be_replayed_is_one_sentence(name: str, run: Path, cli: Cli) -> None:
    spoil, said = SPOILT[name]
    spoil(run)
    cli.refuses(1, ["replay", run, "--step", "4"], said)


def test_the_first_weights_are_lost(first_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(first_run, tmp_path / "run"))
    shutil.rmtree(run / "warm_start")
    with pytest.raises(UserError, match=r"neither a checkpoint before step 1 nor warm_start/"):
        rlvr.replay(rlvr.Run(folder=run, num_steps=2, finished=True), 1)


def test_a_checkpoint_that_its_run_removes_meanwhile(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, config = find_step(run, 4), own_config(str(run))
    assert config is not None
    gone = replace(found, checkpoint=run / "checkpoints/step_000003")
    with repeated(config, gone, {}, lambda *_: None) as made:  # from the first weights, which takes longer
        assert made.run.start_step == 0
    module = importlib.import_module("rlvr.run.assemble")
    real = module.load_checkpoint

    def load(*arguments: Any) -> Any:
        shutil.rmtree(run / "checkpoints/step_000002")
        return real(*arguments)

    monkeypatch.setattr(module, "load_checkpoint", load)
    with pytest.raises(UserError, match="was removed meanwhile"), repeated(config, found, {}, lambda *_: None):
        pass


def test_random_steps_of_the_benchmark_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("replay_steps")
    for name, *overrides in script.RECIPES.values():
        load_config([*script.SHORT, *overrides], config_name=name)
    assert random.Random(0).sample(range(2, 16), 4)
