"""`rollout.max_staleness`: batches of later steps are sampled in a thread of their own while the trainer works."""

import copy
import gc
import importlib
import inspect
import itertools
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.engine import LocalEngine
from rlvr.core.engine.scheduler import Scheduler
from rlvr.core.executor import Background
from rlvr.core.rollout import RolloutSource
from rlvr.core.trainer import Trainer
from rlvr.errors import UserError
from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from rlvr.run import policies
from rlvr.types import Group, Score
from tests.system.harness import SMALL, Command, Ran, check_equal, num_lines, outcome, pretrained, run_train, wait_until
from tests.system.test_two_hop import again
from tests.variants import variants

LONG = (
    *SMALL,
    *("trainer.max_steps=8", "trainer.learning_rate=3e-3", "evaluation.every=3"),
    *("reward=rpn_boxed", "tracker.rollouts_max_groups=null"),
)
build = importlib.import_module("rlvr.run.assemble")
TIS = "algorithm.mismatch_correction=truncate"


def records(folder: Path) -> list[list[EpisodeRecord]]:
    """The episodes of each step."""
    return [read_rollouts(path) for path in sorted((folder / "rollouts").iterdir())]


def trained_on(folder: Path) -> list[tuple[str, int]]:
    """Which draws, in order: example and seed."""
    return [(episode.example_id, episode.seed) for step in records(folder) for episode in step]


def assert_nothing_is_left() -> None:
    assert "rollouts" not in {thread.name for thread in threading.enumerate()}
    gc.collect()  # a task destroyed while pending, or a loop that is open, warns: an error here


# -------------------------------------------------------------------------------------------------------- the bound


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run without staleness."""
    return run_train(tmp_path_factory.mktemp("whole") / "run", *LONG, *pretrained(model))


@pytest.mark.parametrize(
    ("max_staleness", "more"),
    variants([(4, ("algorithm=ppo", "algorithm.mismatch_correction=mask")), (1, ())]),
)
def test_pitfall_24_a_run_keeps_its_bound_for_every_token(
    max_staleness: int, more: Sequence[str], model: Path, whole: Ran, tmp_path: Path
) -> None:
    ran = run_train(tmp_path / "run", *LONG, *pretrained(model), *more, f"rollout.max_staleness={max_staleness}")
    assert ran.result.finished
    assert trained_on(ran.folder) == trained_on(whole.folder)
    oldest = [row["rollout/staleness_max"] for row in ran.rows[1:]]
    assert (oldest[0], max(oldest)) == (0, max_staleness)
    for step, (episodes, row) in enumerate(zip(records(ran.folder), ran.rows[1:], strict=True)):
        rows = [one for episode in episodes for one in episode.rows]
        pairs = [pair for one in rows for pair in zip(one.policy_versions or (), one.loss_mask, strict=True)]
        versions = [version for version, mask in pairs if mask]
        assert step - max_staleness <= min(versions) <= max(versions) <= step
        assert step - min(versions) == row["rollout/staleness_max"]
        assert step - sum(versions) / len(versions) == pytest.approx(row["rollout/staleness_mean"])
    assert_nothing_is_left()


def test_pitfall_31_fresh_tokens_have_the_new_logprobs(model: Path, tmp_path: Path) -> None:
    """Those, too, that came after new weights in the middle of a completion: no key is left of the old ones."""
    ran = run_train(tmp_path / "run", *LONG, *pretrained(model), "rollout.max_staleness=1", "engine.max_batch_size=4")
    apart: dict[str, list[float]] = {"fresh": [], "old": []}
    for step, episodes in enumerate(records(ran.folder)):
        for row in [row for episode in episodes for row in episode.rows]:
            pairs = zip(row.trainer_logprobs or (), row.behavior_logprobs, row.policy_versions or (), strict=True)
            for trainer, behavior, version in pairs:
                if version >= 0 and trainer is not None and behavior is not None:
                    apart["fresh" if version == step else "old"].append(abs(trainer - behavior))
    assert apart["fresh"]  # how many depends on the clock; the first batch is fresh as a whole
    assert max(apart["fresh"]) < 1e-5
    assert max(apart["old"]) > 1e-3


def test_the_evaluation_has_the_newest_weights(monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, set[int]]] = []
    evaluate = build.evaluate_all

    def noting(*args: Any, run: Callable[[Any], Any], **options: Any) -> Any:
        engine = args[2](args[1][0]).engine  # of the player of the first set
        before = len(seen)
        versions: set[int] = set()
        generate = engine.generate

        async def note(*words: Any, **named: Any) -> Any:
            completion = await generate(*words, **named)
            if completion.token_ids:
                versions.update(completion.policy_versions)
            return completion

        async def only(work: Any) -> Any:
            engine.generate = note  # type: ignore[method-assign]
            try:
                return await work
            finally:
                engine.generate = generate  # type: ignore[method-assign]

        found = evaluate(*args, run=lambda work: run(only(work)), **options)
        seen.append((before, versions))
        return found

    monkeypatch.setattr(build, "evaluate_all", noting)
    run_train(tmp_path / "run", *LONG, *pretrained(model), "rollout.max_staleness=2")
    assert seen == [(0, {0}), (1, {3}), (2, {6}), (3, {8})]


# -------------------------------------------------------------------------------------- nothing else has changed


def in_a_thread(monkeypatch: pytest.MonkeyPatch, *, own_weights: bool) -> list[str]:
    """Let rollouts run in a thread where they would not, over the policy's weights or over a copy of them; the names
    of the threads that groups will be sampled in."""
    names: list[str] = []
    sample = RolloutSource.sample

    async def noting(*args: Any, **options: Any) -> list[Group]:
        names.append(threading.current_thread().name)
        return await sample(*args, **options)

    monkeypatch.setattr(build, "Executor", lambda: Background(num_threads=1))
    monkeypatch.setattr(RolloutSource, "sample", noting)
    if own_weights:
        monkeypatch.setattr(build, "open_engine", engine_with_a_copy)
    return names


def engine_with_a_copy(config: Any, *rest: Any, **more: Any) -> Any:
    stale = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_staleness": 1})})
    return policies.open_engine(stale, *rest, **more)


SAME = {
    "dapo": ("evaluation.samples_per_example=2", "algorithm=dapo", "algorithm.max_refills=3", "reward=rpn"),
    "ppo": ("algorithm=ppo", "algorithm.kl_coef=0.05"),
}


@pytest.mark.parametrize(("settings", "own_weights"), variants([("dapo", True), ("ppo", False)]))
def test_a_bound_of_0_in_the_thread_equals_no_thread(
    settings: str, own_weights: bool, monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    words = (*LONG, *pretrained(model), *SAME[settings])
    inline = run_train(tmp_path / "inline", *words)
    names = in_a_thread(monkeypatch, own_weights=own_weights)
    threaded = run_train(tmp_path / "threaded", *words)
    assert set(names) == {"rollouts"}
    check_equal(outcome(threaded.folder), outcome(inline.folder))
    if settings == "dapo":
        assert sum(row["rollout/refilled_groups"] for row in inline.rows[1:]) > 0


def of_searcher(two_hop_run: Path) -> tuple[str, ...]:
    return (*again(two_hop_run), "trainer.max_steps=3", "rollout.prompts_per_step=8", "evaluation.every=2")


def test_several_turns_in_the_thread_equal_no_thread(
    monkeypatch: pytest.MonkeyPatch, two_hop_run: Path, tmp_path: Path
) -> None:
    words = of_searcher(two_hop_run)
    inline = run_train(tmp_path / "inline", *words, name="two_hop")
    assert inline.rows[1]["rollout/turns_mean"] > 1.5
    in_a_thread(monkeypatch, own_weights=True)
    check_equal(outcome(run_train(tmp_path / "threaded", *words, name="two_hop").folder), outcome(inline.folder))


def test_episodes_of_several_turns_keep_the_bound_too(two_hop_run: Path, tmp_path: Path) -> None:
    ran = run_train(tmp_path / "run", *of_searcher(two_hop_run), "rollout.max_staleness=2", TIS, name="two_hop")
    oldest = [row["rollout/staleness_max"] for row in ran.rows[1:]]
    assert max(oldest) == 2
    assert ran.rows[1]["rollout/turns_mean"] > 1.5
    assert ran.rows[1]["policy/mismatch_kl"] < 1e-6  # the first batch is of the very weights it trains
    assert_nothing_is_left()


# ---------------------------------------------------------------------------------------------------------- resume

RESUMED = (*LONG, "rollout.max_staleness=2", TIS, "trainer.checkpoint_every=3")


def test_pitfall_37_kill_9_loses_and_doubles_no_prompt(model: Path, whole: Ran, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = Command("train", *RESUMED, *pretrained(model), f"run_dir={folder}", log=tmp_path / "log")
    wait_until(lambda: num_lines(folder) >= 6)
    command.send(signal.SIGKILL)
    assert command.wait() in (-signal.SIGKILL, 0)
    run_train(folder, *RESUMED, *pretrained(model), "resume=true")
    assert trained_on(folder) == trained_on(whole.folder)


@pytest.mark.parametrize("staleness", variants([2, 0]))
def test_pitfall_37_a_sampler_goes_on_exactly_after_kill_9(staleness: int, model: Path, tmp_path: Path) -> None:
    """Which prompts are drawn depends on rewards, and so on every token before: without staleness all is equal. With
    it the draws of batches in flight depend on the clock (they are sampled again), but none is lost or doubled."""
    settings = ("sampler=pass_rate", "sampler.floor=0.05", "rollout.dead_groups=refill", "trainer.max_steps=12")
    words = (*LONG, *pretrained(model), *settings, f"rollout.max_staleness={staleness}", "trainer.checkpoint_every=3")
    folder = tmp_path / "run"
    command = Command("train", *words, f"run_dir={folder}", log=tmp_path / "log")
    wait_until(lambda: num_lines(folder) >= 6)
    command.send(signal.SIGKILL)
    assert command.wait() in (-signal.SIGKILL, 0)
    resumed = run_train(folder, *words, "resume=true")
    assert len(resumed.rows) == 13
    draws = trained_on(folder)
    assert len(draws) == len(set(draws))
    if staleness == 0:
        whole = run_train(tmp_path / "whole", *words)
        assert sum(row["rollout/refilled_groups"] for row in whole.rows[1:]) > 0
        check_equal(outcome(folder), outcome(whole.folder))


def test_pitfall_37_replaced_groups_are_not_under_way(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (*RESUMED, *pretrained(model), "algorithm=dapo", "algorithm.max_refills=2", "reward=rpn")
    run_train(folder, *words, stopped=lambda: num_lines(folder) > 4)
    refilled = sum(row["rollout/refilled_groups"] for row in run_train(folder, *words, "resume=true").rows[1:])
    assert refilled > 0
    draws = trained_on(folder)
    assert len(draws) == len(set(draws))


# ---------------------------------------------------------------------------------------------------------- the end


def test_a_signal_ends_the_run_after_its_step(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (*LONG, *pretrained(model), "rollout.max_staleness=4", "trainer.max_steps=2000")
    command = Command("train", *words, f"run_dir={folder}", log=tmp_path / "log")
    wait_until(lambda: num_lines(folder) >= 2)
    command.send(signal.SIGTERM)
    check_end(command, 143, "never")
    last = num_lines(folder) - 1
    assert (folder / "checkpoints" / f"step_{last:06d}").is_dir()


def check_end(command: Command, code: int, *more: str) -> None:
    """With that code, and no word of a thread, a task or a loop that was left."""
    assert command.wait() == code, command.err
    assert [word for word in ("Traceback", "destroyed", "Warning", *more) if word in command.err] == []


def test_a_second_signal_stops_at_once(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = ("rollout.prompts_per_step=500", "engine.max_batch_size=8", "rollout.max_staleness=1")
    command = Command("train", *LONG, *pretrained(model), *slow, f"run_dir={folder}", log=tmp_path / "log")
    wait_until(lambda: num_lines(folder) == 1)
    command.send(signal.SIGINT)
    wait_until(lambda: "once more stops at once" in command.err)
    command.send(signal.SIGINT)
    check_end(command, 130)


def fail_at(count: int, function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """The function, which raises instead of its n-th call."""
    calls = itertools.count(1)

    def failing(*args: Any, **options: Any) -> Any:
        if next(calls) == count:
            raise error
        return function(*args, **options)

    async def failing_later(*args: Any, **options: Any) -> Any:
        return await failing(*args, **options)

    return failing_later if inspect.iscoroutinefunction(function) else failing


TROUBLE = {
    "a verifier that breaks its contract": (RolloutSource, "_sample_group", 14, UserError("mend your verifier")),
    "a step of the engine": (Scheduler, "step", 40, RuntimeError("no memory left")),
    "new weights": (LocalEngine, "load_weights", 3, RuntimeError("no such tensor")),
    "the trainer": (Trainer, "update", 3, RuntimeError("no memory left")),
    "the trainer, asked to stop at once": (Trainer, "update", 3, SystemExit(130)),
    "a rollout that exits": (RolloutSource, "_sample_group", 14, SystemExit(3)),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_failures_end_the_run_with_their_own_error(
    trouble: str, monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    owner, name, count, error = TROUBLE[trouble]
    monkeypatch.setattr(owner, name, fail_at(count, getattr(owner, name), copy.copy(error)))
    with pytest.raises(type(error)) as caught:
        run_train(tmp_path / "run", *LONG, *pretrained(model), "rollout.max_staleness=2")
    assert str(caught.value) == str(error)
    del caught
    assert_nothing_is_left()


def test_verifier_errors_stop_the_run_at_their_step(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    """Not when they fail, which is earlier and at no certain step."""
    sample = RolloutSource._sample_group  # pyright: ignore[reportPrivateUsage]

    async def failing(self: RolloutSource, index: int, step: int) -> Group:
        group = await sample(self, index, step)
        if index < 12:
            return group
        score = Score(value=float("nan"), status="error", diagnostics={"error": "sandbox died"})
        return replace(group, episodes=tuple(replace(episode, score=score) for episode in group.episodes))

    monkeypatch.setattr(RolloutSource, "_sample_group", failing)
    with pytest.raises(UserError, match=r"16 of 16 episodes of this step.*sandbox died"):
        run_train(tmp_path / "run", *LONG, *pretrained(model), "rollout.max_staleness=2")
    assert num_lines(tmp_path / "run") == 4  # 0 and the three steps of 4 prompts before
    assert_nothing_is_left()
