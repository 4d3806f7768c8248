"""Tasks of a run: what its evaluation sets hold out is not trained on."""

from pathlib import Path

import pytest

from rlvr.config.compose import load_config
from rlvr.run.tasks import open_tasks
from tests.unit.tasks.data_tasks import sums, write_jsonl


@pytest.mark.parametrize("mixed", [False, True], ids=["one task", "a mix"])
def test_pitfall_38_no_task_trains_on_what_another_set_holds_out(mixed: bool, tmp_path: Path) -> None:
    rows = sums(20)
    train, other, held_out = (tmp_path / f"{name}.jsonl" for name in ("train", "other", "held_out"))
    write_jsonl(train, rows[:16])
    write_jsonl(other, sums(40)[20:])
    write_jsonl(held_out, rows[4:])
    part = f"{{task:jsonl,set:['task.path={train}','task.eval_share=0.1']}}"
    second = f"{{task:jsonl,set:['task.path={other}']}}"
    own = ["task=mix", f"task.parts={{a:{part},b:{second}}}"] if mixed else ["task=jsonl", f"task.path={train}"]
    also = f"evaluation.also={{held:{{task:jsonl,set:['task.path={held_out}','task.eval_share=0.9']}}}}"
    config = load_config([*own, also, "model=hf", "model.name_or_path=none"])
    with open_tasks(config, "llama", {}) as tasks:
        held = {example.messages[-1].content for example in tasks.also[0].eval_examples(100)}
        trained = {tasks.own.train_example(index).messages[-1].content for index in range(100)}
    assert len(held) > 8
    assert not held & trained
