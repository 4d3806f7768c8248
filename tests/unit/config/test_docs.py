"""`docs/configuration.md` is current, and its table of foreign keys points to keys that exist."""

from pathlib import Path

import pytest

from rlvr.config.catalog import keys, sections
from rlvr.config.docs import is_label, page
from rlvr.config.schema import Config
from rlvr.config.spellings import (
    HYDRA_SPELLINGS,
    MUSIQUE_SPELLINGS,
    OTHER_SPELLINGS,
    RPN_SPELLINGS,
    Spelling,
    find_spelling,
)

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"

RPN_PARAMETERS = [
    "num_epochs",
    "samples_per_epoch",
    "max_batches_per_epoch",
    "max_prompt_length",
    "max_generation_length",
    "complexity_range",
    "learning_rate",
    "batch_size",
    "mini_batch_size",
    "gradient_accumulation_steps",
    "ppo_steps",
    "ppo_epochs",
    "cliprange",
    "cliprange_value",
    "vf_coef",
    "target_kl",
    "early_stopping",
    "temperature",
    "top_p",
    "reward_type",
    "boxed_weight",
    "correct_weight",
    "log_every",
    "checkpoint_every",
    "seed",
    "experiment_name",
    "run_name",
]


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `python -m rlvr.config.docs > docs/configuration.md`"


def test_the_page_has_every_key_once() -> None:
    text = PAGE.read_text()
    names = [key.path for key in keys() if not is_label(key)]
    assert [name for name in names if text.count(f"\n| `{name}` | ") < 1] == []


def test_every_key_has_a_description() -> None:
    missing = [key.path for key in keys() if not key.field.description and not is_label(key)]
    assert missing == []


def test_the_table_has_every_parameter_of_the_rpn_specification() -> None:
    assert [spelling.theirs for spelling in RPN_SPELLINGS] == RPN_PARAMETERS


@pytest.mark.parametrize(
    "spelling",
    RPN_SPELLINGS + HYDRA_SPELLINGS + MUSIQUE_SPELLINGS + OTHER_SPELLINGS,
    ids=lambda spelling: spelling.theirs,
)
def test_our_side_of_the_table_is_in_the_schema(spelling: Spelling) -> None:
    assert set(spelling.ours) <= {key.path for key in keys()} | set(sections())


def test_a_foreign_key_is_found_whole_or_by_its_last_component() -> None:
    assert find_spelling("cliprange") is find_spelling("rlvr_training.cliprange")
    assert find_spelling("nothing") is None
    assert find_spelling("eval.enabled") is not None  # by its last two components: `enabled` alone is ours
    assert find_spelling("model.lora.enabled") is None
    assert "trainer" in Config.model_fields
