from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from rlvr.config.schema import ScratchModel
from rlvr.errors import ConfigError
from rlvr.models.scratch import build_model, build_tokenizer
from tests.unit.tasks.settings import make_task

TASK = make_task(modulus=None, max_abs_value=12, operand_range=(0, 4))


def scratch(**changes: object) -> ScratchModel:
    values = {
        "name": "scratch",
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 24,
        "init_std": 0.06,
        "rope_theta": 100.0,
        "max_context_tokens": 40,
    }
    return ScratchModel(**(values | changes))  # type: ignore[arg-type]


def model(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    return build_model(scratch(**changes), build_tokenizer(TASK.vocabulary), seed)


def test_text_and_ids_are_a_round_trip() -> None:
    tokenizer = build_tokenizer(TASK.vocabulary)
    for index in range(100):
        text = " ".join(TASK.demonstration(index, 1.0))
        ids = tokenizer.encode(text)
        assert [TASK.vocabulary[token] for token in ids] == text.split()
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode(range(len(TASK.vocabulary))) == " ".join(TASK.vocabulary)
    assert (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token) == ("<pad>", "<boe>", "<eoe>")
    assert tokenizer.encode("") == []


@pytest.mark.parametrize("vocabulary", [["<pad>", "<boe>"], ["<pad>", "<boe>", "<eoe>", "1", "1"]])
def test_a_vocabulary_without_marks_or_with_a_word_twice_is_an_error(vocabulary: list[str]) -> None:
    with pytest.raises(ValueError, match="no word twice"):
        build_tokenizer(vocabulary)


def test_the_folder_is_one_that_transformers_loads(tmp_path: Path) -> None:
    tokenizer, built = build_tokenizer(TASK.vocabulary), model()
    tokenizer.save_pretrained(tmp_path)
    built.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    words = AutoTokenizer.from_pretrained(tmp_path)
    text = "<boe> 3 -4 + ="
    assert words.encode(text) == tokenizer.encode(text)
    assert words.decode(words.encode(text)) == text
    ids = torch.tensor([words.encode(text)])
    assert torch.equal(loaded(ids).logits, built(ids).logits)
    assert loaded.generation_config.eos_token_id == words.eos_token_id == 2


def test_the_config_follows_the_settings() -> None:
    config = model().config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (len(TASK.vocabulary), 16, 2)
    assert (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size) == (4, 4, 24)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100.0}
    assert (config.initializer_range, config.max_position_embeddings) == (0.06, 40)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    assert not config.tie_word_embeddings
    generation = model().generation_config
    assert generation is not None
    assert (generation.pad_token_id, generation.bos_token_id, generation.eos_token_id) == (0, 1, 2)


def test_weights_are_float32_untied_and_as_wide_as_asked() -> None:
    built = model(hidden_size=64, init_std=0.1)
    assert {weight.dtype for weight in built.parameters()} == {torch.float32}
    assert built.lm_head.weight is not built.model.embed_tokens.weight
    assert built.model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.1, rel=0.1)
    assert built.model.embed_tokens.weight.std().item() == pytest.approx(0.1, rel=0.1)


def test_rope_theta_reaches_the_attention() -> None:
    ids = torch.tensor([[1, 8, 9, 4, 3]])
    assert not torch.equal(model()(ids).logits, model(rope_theta=1e4)(ids).logits)


def test_the_default_recipe_has_198848_parameters() -> None:
    sizes = {"hidden_size": 64, "num_layers": 3, "num_heads": 4, "intermediate_size": 256}
    built = build_model(scratch(**sizes), build_tokenizer(make_task().vocabulary), 0)
    assert sum(weight.numel() for weight in built.parameters()) == 198_848


def test_weights_are_a_function_of_the_seed_and_leave_the_global_one_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = model(seed=1).state_dict()
    assert torch.equal(torch.rand(3), expected)
    again, other = model(seed=1).state_dict(), model(seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize(("width", "heads"), [(16, 3), (12, 4), (16, 16)])
def test_heads_must_have_an_even_size(width: int, heads: int) -> None:
    message = f"model.num_heads={heads} does not divide model.hidden_size={width}.*multiple of {2 * heads}"
    with pytest.raises(ConfigError, match=message):
        model(hidden_size=width, num_heads=heads)
