"""`rlvr train --config-name k_hop`: questions that shrink by one hop a turn, learnt on two and three hops, asked up to
five; and demonstrations of contexts that restart, for a model that is there already."""

from pathlib import Path

import pytest

from rlvr.records.rollouts import read_rollouts
from tests.system.harness import metrics, pretrained, run_train, split

LEARN = split("""
    model.hidden_size=48 model.intermediate_size=96 warm_start.num_steps=160 warm_start.final_phase_steps=0
    trainer.max_steps=2 rollout.prompts_per_step=8 trainer.checkpoint_every=null evaluation.every=2
    evaluation.num_examples=120 tracker.console=none tracker.rollouts_every=1 tracker.rollouts_max_groups=null
""")


def by_hops(row: dict[str, float]) -> list[float]:
    return [row[f"eval/k_hop/accuracy_hops_{hops}"] for hops in (2, 3, 4, 5)]


def test_pitfall_18_peeling_reaches_lengths_that_were_never_trained_on(tmp_path: Path) -> None:
    run = run_train(tmp_path / "run", *LEARN, name="k_hop").folder
    rows = metrics(run)
    assert min(by_hops(rows[0])[:3]) >= 0.8
    assert by_hops(rows[0])[3] >= 0.5
    assert rows[0]["eval/k_hop/tool_calls_mean"] == pytest.approx(3.5, abs=0.2)
    record, *_ = read_rollouts(run / "rollouts" / "step_000001.jsonl.gz")
    asked = [turn.prompt.split() for turn in record.turns]  # each context whole, and one relation shorter
    assert [len(words) for words in asked] == list(range(len(asked) + 1, 1, -1))
    assert all(words[0] == "<q>" for words in asked)
    # demonstrations restart as its episodes do: training on them does no harm
    more = ("warm_start.enabled=true", "warm_start.num_examples=64", "warm_start.num_epochs=1", "trainer.max_steps=0")
    kept = [word for word in LEARN if not word.startswith(("warm_start.", "model.", "trainer.max_steps"))]
    tuned = run_train(tmp_path / "tuned", *kept, *pretrained(run / "final"), *more, name="k_hop")
    assert min(by_hops(tuned.rows[0])[:3]) >= 0.8


@pytest.mark.long
def test_pitfall_18_the_recipe_regains_the_searches_by_reward_alone(tmp_path: Path) -> None:
    """With one of three seeds: rounding decides where a warm start ends, and one seed of four falls short."""
    few = ("evaluation.every=20", "evaluation.num_examples=200", "tracker.console=none")

    def regains(seed: int) -> bool:
        rows = metrics(run_train(tmp_path / str(seed), *few, f"seed={seed}", name="k_hop").folder)
        start, end = by_hops(rows[0]), by_hops(rows[-1])
        return max(start) <= 0.5 and min(end[:3]) >= 0.8 and end[3] >= 0.5

    assert any(map(regains, (4, 3, 1)))
    flat = metrics(run_train(tmp_path / "flat", *few, "task.mode=flat", name="k_hop").folder)[-1]
    assert min(by_hops(flat)[:2]) >= 0.9
    assert by_hops(flat)[3] <= 0.3
