import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from rlvr.config.compose import load_config
from rlvr.errors import ConfigError
from rlvr.models.scratch import build_bpe_tokenizer, build_model, build_tokenizer
from rlvr.models.settings import ScratchBpeModel, ScratchModel
from tests.unit.tasks.settings import make_task

TASK = make_task(modulus=None, max_abs_value=12, operand_range=(0, 4))


def scratch(**changes: object) -> ScratchModel:
    values = {"hidden_size": 16, "num_layers": 2, "intermediate_size": 24, "max_context_tokens": 40}
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


def test_weights_follow_the_seed_and_leave_the_global_one_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = model(seed=1).state_dict()
    assert torch.equal(torch.rand(3), expected)
    again, other = model(seed=1).state_dict(), model(seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((16, 3, "null"), r"model\.num_heads=3: model.hidden_size=16 does not split .*multiple of 2 x model.num_heads"),
        ((16, 4, 31), r"model\.head_dim=31: must be a multiple of 2"),
    ],
)
def test_heads_must_have_an_even_size(sizes: tuple[object, ...], message: str) -> None:
    keys = ("hidden_size", "num_heads", "head_dim")
    with pytest.raises(ConfigError, match=message):
        load_config([f"model.{key}={size}" for key, size in zip(keys, sizes, strict=True)])


def test_heads_are_as_wide_as_asked() -> None:
    built = model(head_dim=32)  # 4 heads of 32 over a residual stream of 16
    attention = built.model.layers[0].self_attn
    assert tuple(attention.q_proj.weight.shape) == tuple(attention.k_proj.weight.shape) == (128, 16)
    assert tuple(attention.o_proj.weight.shape) == (16, 128)
    ids = torch.tensor([[1, 8, 9, 4, 3]])
    assert built(ids).logits.isfinite().all()
    same, default = model(head_dim=4).state_dict(), model().state_dict()
    assert all(torch.equal(same[name], default[name]) for name in default)


MARKERS = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")
TEXTS = [f"Ann has {n} apples and eats {n % 3} of them.\nHow many apples has Ann?  {n}-{n % 3}=?" for n in range(99)]
BPE = build_bpe_tokenizer(TEXTS, 330, MARKERS)


def scratch_bpe(**changes: object) -> ScratchBpeModel:
    values = scratch().model_dump() | {"init_std": 0.08, "hidden_size": 64}
    values |= {"vocabulary_size": 330, "embedding_init_std": 0.03}
    return ScratchBpeModel(**(values | changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("", " a", "  two  spaces\t\n\r\n", "don 't , stop .", "é 漢字 🙂 \u200b\u0301", "<start_working"),
        *TEXTS[:2],
        f"{MARKERS[0]} 7-1=6 {MARKERS[1]}\n{MARKERS[2]}6{MARKERS[3]} <eos>",
        f"x{MARKERS[0]}y",
        "a<eos><pad> b",
    ],
)
def test_bpe_text_and_ids_are_an_exact_round_trip(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


@pytest.mark.slow
@given(st.text(), st.text())
def test_bpe_round_trip_of_any_text_around_a_marker(left: str, right: str) -> None:
    text = f"{left}{MARKERS[1]}{right}"
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text
    assert BPE.get_vocab()[MARKERS[1]] in ids


@pytest.mark.slow
def test_bpe_markers_are_one_token_each_wherever_they_stand() -> None:
    assert len(BPE) == 330
    ids = [BPE.get_vocab()[marker] for marker in MARKERS]
    assert ids == [326, 327, 328, 329]
    assert [BPE.encode(marker) for marker in MARKERS] == [[token] for token in ids]
    assert BPE.encode("".join(MARKERS)) == ids
    around = BPE.encode(f"apples{MARKERS[0]} apples")
    assert around == [*BPE.encode("apples"), ids[0], *BPE.encode(" apples")]


@pytest.mark.slow
def test_bpe_learns_nothing_from_markers_in_the_text() -> None:
    marked = [f"{text}{''.join(MARKERS)}" for text in TEXTS]
    assert build_bpe_tokenizer(marked, 330, MARKERS).backend_tokenizer.to_str() == BPE.backend_tokenizer.to_str()
    assert len(build_bpe_tokenizer(["<think>"] * 9, 300, ["<think>"])) == 259
    assert len(build_bpe_tokenizer(["<think>"] * 9, 300, ())) == 262  # four merges for `think`, were it no marker


TRAIN_AND_PRINT = """
import json, sys
from rlvr.models.scratch import build_bpe_tokenizer
texts, markers = json.load(sys.stdin)
print(build_bpe_tokenizer(texts, 330, markers).backend_tokenizer.to_str())
"""


def test_bpe_the_same_text_gives_the_same_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    again = build_bpe_tokenizer(iter(TEXTS), 330, MARKERS).backend_tokenizer.to_str()
    assert again == BPE.backend_tokenizer.to_str()


@pytest.mark.long
def test_bpe_the_same_text_gives_the_same_tokenizer_in_any_process() -> None:
    """With any number of threads. Pairs that are equally frequent, of which this text is full, could differ."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_PRINT],
        input=json.dumps([TEXTS, MARKERS]),
        env=os.environ | {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "5", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == BPE.backend_tokenizer.to_str()


@pytest.mark.slow
def test_bpe_the_folder_is_one_that_transformers_loads(tmp_path: Path) -> None:
    built = build_model(scratch_bpe(), BPE, 0).eval()
    BPE.save_pretrained(tmp_path)
    built.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = f"  How many?\n{MARKERS[0]} 7 {MARKERS[1]}{MARKERS[2]}7{MARKERS[3]}<eos>"
    assert tokenizer.encode(text) == BPE.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = torch.tensor([tokenizer.encode(text)])
    assert torch.equal(loaded(ids).logits, built(ids).logits)
    assert loaded.generation_config.eos_token_id == loaded.config.eos_token_id == tokenizer.eos_token_id == 1
    assert (loaded.config.bos_token_id, loaded.config.pad_token_id) == (None, 0)


@pytest.mark.slow
def test_bpe_embeddings_have_their_scale_and_are_tied_if_asked() -> None:
    tied, untied = build_model(scratch_bpe(), BPE, 0), build_model(scratch_bpe(tie_embeddings=False), BPE, 0)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    for built in (tied, untied):
        assert built.model.embed_tokens.weight.std().item() == pytest.approx(0.03, rel=0.05)
        assert built.model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.08, rel=0.1)
    assert untied.lm_head.weight.std().item() == pytest.approx(0.08, rel=0.05)
