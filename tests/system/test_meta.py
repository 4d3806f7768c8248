"""`rlvr train --config-name meta`: a model learns to use the examples in its prompt."""

import json
from pathlib import Path

import pytest

from tests.system.harness import Cli, run_train, split

LEARN = split("""
    task.num_entities=3 model.hidden_size=48 model.intermediate_size=96
    warm_start.num_steps=300 warm_start.final_phase_steps=50 warm_start.batch_size=32 warm_start.final_worked_share=0.3
    rollout.prompts_per_step=16 trainer.max_steps=20 trainer.warmup_steps=0 trainer.learning_rate=1e-3
    trainer.checkpoint_every=null evaluation.every=20 evaluation.num_examples=100 tracker.console=none
""")
"""A smaller model and fewer different examples, learnt in 10 CPU seconds."""


@pytest.mark.long
def test_a_short_run_learns_to_use_the_examples_in_its_prompt(tmp_path: Path, cli: Cli) -> None:
    run = tmp_path / "run"
    rows = run_train(run, *LEARN, name="meta").rows
    before, after = ([row[f"eval/meta/accuracy_k_{k}"] for k in range(5)] for row in (rows[0], rows[-1]))
    assert max(before) <= 0.5
    assert min(after[3:]) >= 0.75
    assert after[0] <= 0.5
    # what the prompt tells is what is read: examples of other meanings are no better than none
    told, shuffled = (
        json.loads(cli.ok("eval", run, "--num-examples", "200", "--json", *more).out)
        for more in ((), ("--set", "task.shuffled_supports=true"))
    )
    assert told["eval/meta/accuracy_k_4"] >= 0.75
    assert shuffled["eval/meta/accuracy_k_4"] <= 0.5
    said = cli.ok("predict", run, "--prompt", "e1 w2 r3 . e0 w0 r1 . e2 w1 r0 . e0 w3 r2 . <q> e2 w2").out
    assert "answer r3: right" in said
    cli.refuses(1, ["predict", run, "--prompt", "e7 w2"], "ask e1 w2 r3 . <q> e7 w2 (to e2, w3, r3)")
