"""`docs/configuration.md` is current; its table of foreign keys names keys that exist."""

from pathlib import Path

import pytest

from rlvr.commands.train.help import page
from rlvr.config.config import CHOICES, Config, all_keys
from rlvr.config.messages import ForeignKey, find_spelling, spellings
from rlvr.registry import names

EVERY_KEY = {
    key for group in CHOICES if group != "reward" for name in names(group) for key in all_keys({group: name})
} | set(all_keys({}))
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"

RPN_PARAMETERS = """
num_epochs samples_per_epoch max_batches_per_epoch max_prompt_length max_generation_length complexity_range
learning_rate batch_size mini_batch_size gradient_accumulation_steps ppo_steps ppo_epochs cliprange cliprange_value
vf_coef target_kl early_stopping temperature top_p reward_type boxed_weight correct_weight log_every checkpoint_every
seed experiment_name run_name
"""


def test_the_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA", raising=False)  # which defaults of tasks follow
    assert PAGE.read_text() == page(), "run `python -m rlvr.commands.train.help > docs/configuration.md`"


def test_every_parameter_of_the_rpn_specification_is_named() -> None:
    theirs = {spelling.theirs for spelling in spellings()}
    assert [name for name in RPN_PARAMETERS.split() if name not in theirs] == []


@pytest.mark.parametrize("spelling", spellings(), ids=lambda spelling: spelling.theirs)
def test_our_side_of_the_table_is_a_key(spelling: ForeignKey) -> None:
    known = {*EVERY_KEY, *Config.model_fields}
    assert [key for key in spelling.ours if key not in known and not key.startswith("reward.parts.")] == []


def test_a_foreign_key_is_found_whole_or_by_its_last_component() -> None:
    assert find_spelling("cliprange") is find_spelling("rlvr_training.cliprange")
    assert find_spelling("nothing") is None
    assert find_spelling("eval.enabled") is not None  # by its last two components: `enabled` alone is ours
    assert find_spelling("model.lora.enabled") is None
    assert "trainer" in Config.model_fields
