"""Adapters: only they move, the engine has them, the reference does not, and what is saved is what was trained."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.core.engine import LocalEngine
from rlvr.errors import ConfigError, UserError
from rlvr.models.adapters import adapter_weights, lora_layers, without_adapters
from rlvr.models.layout import choose_layout
from rlvr.models.loading import load_for_inference, load_policy, model_family
from rlvr.models.policy import HubPolicy, check_trainable
from rlvr.types import SamplingParams
from tests.unit.core.tiny import plain_logprobs, tiny_batch, tiny_trainer, update
from tests.unit.engines.tiny import generate
from tests.unit.models.checkpoints import KINDS, adapted, frozen_bytes, lora, num_trained, save_model, settings

IDS = torch.tensor([[1, 5, 3, 6, 2, 9, 4]])
KL = ("algorithm.kl_coef=0.1", "trainer.learning_rate=0.01")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@torch.no_grad()
def logits(policy: HubPolicy | Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    model = policy.model if isinstance(policy, HubPolicy) else policy
    return model(input_ids=ids, use_cache=False).logits.float()


def tolerance(policy: HubPolicy) -> float:
    return 0.1 if policy.dtype == torch.bfloat16 else 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pitfall_32_only_adapters_move(kind: str, folder: Path, tmp_path: Path) -> None:
    """The base stays bit identical through all that a run does with the weights."""
    policy = adapted(folder, **KINDS[kind], lora=lora(merge_final=True))
    trainer = tiny_trainer(policy, *KL, "trainer.precision=fp32", layout=choose_layout(policy))
    before = frozen_bytes(policy)
    first = {name: weight.detach().clone() for name, weight in adapter_weights(policy.model).items()}
    batch = tiny_batch(policy)
    for step in range(6):
        engine = LocalEngine(policy.model, max_batch_size=2, max_context_tokens=40)
        generate(engine, [((1, 5, 3), SamplingParams(max_tokens=4, stop_ids=frozenset(), seed=step))])
        update(trainer, batch)
    policy.save(tmp_path / "checkpoint")
    policy.load_weights(tmp_path / "checkpoint")
    policy.save_final(tmp_path / "final")
    after = frozen_bytes(policy)
    assert [name for name in before if before[name] != after[name]] == []
    assert set(before) == set(after)
    still = [name for name, weight in adapter_weights(policy.model).items() if torch.equal(weight, first[name])]
    assert still == []
    assert {p.dtype for p in policy.parameters()} == {torch.float32}


@pytest.mark.parametrize("wrong", ["base", "adapter", "dtype"])
def test_a_wrong_set_of_trainable_weights_is_refused(wrong: str, folder: Path) -> None:
    policy = adapted(folder)
    if wrong == "base":
        policy.model.get_input_embeddings().requires_grad_(True)
    elif wrong == "adapter":
        next(iter(policy.parameters())).requires_grad_(False)
    else:
        policy.model.bfloat16()
    with pytest.raises(RuntimeError, match="are trained and should not be, or not in float32"):
        check_trainable(policy)


def test_fresh_adapters_change_nothing_and_follow_the_seed(folder: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, again, other = (load_policy(settings(folder), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    whole = load_policy(settings(folder, lora=lora(enabled=False)), seed=1)
    assert torch.equal(logits(one), logits(whole))
    weights = [adapter_weights(policy.model) for policy in (one, again, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(next(iter(weights[0].values())), next(iter(weights[2].values())))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mixtral"])
def test_all_linear_takes_every_layer_but_the_head(architecture: str, tmp_path: Path) -> None:
    policy = adapted(save_model(tmp_path, architecture), lora=lora(target_modules=("all-linear",)))
    found = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in adapter_weights(policy.model)}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    mlp = set() if architecture == "mixtral" else {"gate_proj", "up_proj", "down_proj"}  # experts are no linear layers
    assert found == attention | mlp


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        (("q_proj", "c_attn"), "model.lora.target_modules: 'c_attn' is no linear layer of LlamaForCausalLM with"),
        (("k_porj",), "write k_proj"),
    ],
)
def test_a_layer_that_is_not_there_is_named_with_the_nearest(
    targets: tuple[str, ...], sentence: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        adapted(folder, lora=lora(target_modules=targets))


def test_a_head_that_is_tied_to_the_embeddings_gets_no_adapter(folder: Path, tmp_path: Path) -> None:
    head = lora(target_modules=("q_proj", "lm_head"))
    assert any("lm_head" in name for name in adapter_weights(adapted(folder, lora=head).model))
    with pytest.raises(ConfigError, match="'lm_head' is no linear layer of Qwen2ForCausalLM with weights of its own"):
        adapted(save_model(tmp_path, "qwen2"), lora=head)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pitfall_32_the_engine_samples_with_the_adapters(kind: str, folder: Path) -> None:
    policy = adapted(folder, shake=0.5, **KINDS[kind])
    engine = LocalEngine(policy.model, max_batch_size=4, max_context_tokens=40)
    (completion,) = generate(engine, [((1, 5, 3), SamplingParams(max_tokens=12, stop_ids=frozenset(), seed=3))])
    ids = torch.tensor([[1, 5, 3, *completion.token_ids]])
    plain = logits(policy, ids)[0, 2:-1].log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    assert torch.allclose(torch.tensor(completion.behavior_logprobs), plain, atol=tolerance(policy))
    with without_adapters(policy.model):
        without = logits(policy)
    assert (logits(policy) - without).abs().max() > 0.5  # the test can see the difference


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pitfall_32_the_reference_is_the_model_without_adapters(kind: str, folder: Path) -> None:
    policy = adapted(folder, **KINDS[kind])
    batch = tiny_batch(policy)
    base = plain_logprobs(policy, batch) * batch.loss_mask
    trainer = tiny_trainer(policy, *KL, "trainer.precision=fp32", layout=choose_layout(policy))
    for _ in range(3):
        update(trainer, batch)
    scored = trainer.score(batch)
    assert torch.allclose(scored.columns["reference_logprobs"], base, atol=tolerance(policy))
    assert (plain_logprobs(policy, batch) * batch.loss_mask - base).abs().max() > 0.2  # and training moved the policy
    check_trainable(policy)  # the adapters are on again, and trained


def test_pitfall_32_a_trained_adapter_is_its_own_reference(folder: Path) -> None:
    policy = adapted(folder, shake=0.5)
    start, frozen = logits(policy), policy.freeze()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.5)
    moved = logits(policy)
    with frozen() as reference:
        assert torch.equal(logits(reference), start)
    assert torch.equal(logits(policy), moved)
    assert not torch.equal(moved, start)


def test_a_copy_of_a_policy_with_fresh_adapters_can_follow_it(folder: Path) -> None:
    policy = adapted(folder)
    start, copy = logits(policy), policy.freeze(moves=True)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3)
    moved = logits(policy)
    assert not torch.equal(moved, start)
    for refresh, expected in ((False, start), (True, moved)):
        if refresh:
            copy.refresh(policy)
        with copy() as frozen:
            assert torch.equal(logits(frozen), expected)
    assert torch.equal(logits(policy), moved)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_model_in_float32(kind: str, folder: Path) -> None:
    """The frozen weights as float32 numbers with the same adapters: every product has the same gradient."""
    quantized, plain = adapted(folder, shake=0.5, **KINDS[kind]), adapted(folder, shake=0.5)
    base = quantized.adapters.fresh_base().state_dict()
    with torch.no_grad():
        for name, parameter in plain.model.named_parameters():
            if "lora_" not in name:
                parameter.copy_(base[name.replace(".base_layer", "")])
    batch = tiny_batch(plain).take([4, 5, 6, 7])
    gradients = []
    for policy in (quantized, plain):
        trainer = tiny_trainer(policy, "trainer.precision=fp32", "trainer.learning_rate=1e-9")
        update(trainer, batch)
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    similarity = torch.nn.functional.cosine_similarity(*gradients, dim=0).item()
    assert similarity > (0.99 if quantized.dtype == torch.bfloat16 else 0.999999)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_autocast_keeps_no_second_input_and_the_same_gradient(kind: str, folder: Path) -> None:
    """Against peft's own cast of an adapter's input."""
    found = []
    for own in (True, False):
        policy, kept = adapted(folder, shake=0.1, **KINDS[kind]), dict[int, torch.Tensor]()
        for layer in lora_layers(policy.model).values() if not own else ():
            del layer._cast_input_dtype

        def keep(tensor: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> torch.Tensor:
            return kept.setdefault(tensor.data_ptr(), tensor)

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu"):
            policy.hidden(IDS.repeat(1, 20)).float().sum().backward()
        gradients = [parameter.grad for parameter in policy.parameters()]
        found.append((gradients, sum(tensor.nbytes for tensor in kept.values())))
    (ours, less), (theirs, more) = found
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))  # pyright: ignore[reportArgumentType]
    assert less < more if kind == "bfloat16" else less == more


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_adapter_is_loaded_again_for_inference(kind: str, folder: Path, tmp_path: Path) -> None:
    policy = adapted(folder, shake=0.5, **KINDS[kind])
    policy.save_final(tmp_path / "final")
    names = {path.name for path in (tmp_path / "final").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    loaded = load_for_inference(str(tmp_path / "final"), settings("elsewhere", **KINDS[kind]))
    assert torch.equal(logits(loaded), logits(policy))
    assert len(loaded.tokenizer) == len(policy.tokenizer)


def test_a_saved_adapter_loads_in_plain_transformers_and_peft(folder: Path, tmp_path: Path) -> None:
    policy = adapted(folder, shake=0.5)
    policy.save_final(tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(folder.resolve())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft 0.21 asks transformers 5.23 for a name it is about to drop
        from peft import AutoPeftModelForCausalLM

        peft = AutoPeftModelForCausalLM.from_pretrained(tmp_path)
        plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tmp_path)
    for model in (peft, plain):
        assert torch.equal(logits(model), logits(policy))


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_final_is_the_trained_model_in_float32(kind: str, folder: Path, tmp_path: Path) -> None:
    policy = adapted(folder, shake=0.5, lora=lora(merge_final=True), **KINDS[kind])
    policy.save_final(tmp_path)
    assert not list(tmp_path.glob("adapter*"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {p.dtype for p in merged.parameters()} == {torch.float32}
    assert getattr(merged.config, "quantization_config", None) is None
    gap = (logits(merged) - logits(policy)).abs().max()
    assert gap < (0.3 if policy.dtype == torch.bfloat16 else 1e-4)
    assert load_for_inference(str(tmp_path), settings("elsewhere", **KINDS[kind])).dtype == torch.float32


def test_training_goes_on_from_an_adapter_or_merged_with_it(folder: Path, tmp_path: Path) -> None:
    policy = adapted(folder, shake=0.5)
    policy.save_final(tmp_path)
    goes_on = load_policy(settings(tmp_path), seed=7)
    assert torch.equal(logits(goes_on), logits(policy))
    assert num_trained(goes_on) == num_trained(policy)
    goes_on.save(tmp_path / "again")
    assert json.loads((tmp_path / "again/adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)
    whole = load_policy(settings(tmp_path, lora=lora(enabled=False)), seed=7)
    assert num_trained(whole) == whole.num_weights == policy.num_weights - 1536
    assert torch.allclose(logits(whole), logits(policy), atol=1e-4)
    assert not hasattr(whole.model, "peft_config")
    assert model_family(settings(tmp_path)) == model_family(settings(folder)) == "llama"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"r": 8}, "model.lora.r: .* has another one; set it to 4"),
        ({"alpha": 16}, "model.lora.alpha: .* has another one; set it to 8"),
        ({"target_modules": ("q_proj",)}, r"target_modules: .* set it to \[down_proj,q_proj,v_proj\]"),
    ],
)
def test_going_on_with_an_adapter_of_another_form_is_an_error(
    changes: dict[str, Any], sentence: str, folder: Path, tmp_path: Path
) -> None:
    adapted(folder).save(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        load_policy(settings(tmp_path, lora=lora(**changes)), seed=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"base_model_name_or_path": "/gone/away"}, "was trained on /gone/away, which is gone: put it back"),
        ({"base_model_name_or_path": None}, "is more than plain LoRA matrices"),
        ({"modules_to_save": ["lm_head"]}, "is more than plain LoRA matrices"),
        ("narrow", "does not fit the model"),
        ("no weights", "cannot be read"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_a_sentence(
    changes: dict[str, Any] | str, sentence: str, folder: Path, tmp_path: Path
) -> None:
    adapted(folder).save(tmp_path)
    if changes == "narrow":
        changes = {"base_model_name_or_path": str(save_model(tmp_path / "narrow", hidden_size=16))}
    elif changes == "no weights":
        (tmp_path / "adapter_model.safetensors").write_bytes(b"")
        changes = {}
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=sentence):
        load_for_inference(str(tmp_path))


BIASED = {"attention_bias": True}
PEFT: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "experts": (
        "mixtral",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
        None,
    ),
    "head": ("llama", {"target_modules": ["q_proj", "lm_head"]}, None),
    "rslora": ("llama", {"target_modules": ["q_proj"], "use_rslora": True, "rank_pattern": {"layers.0": 2}}, None),
    "embeddings": ("llama", {"target_modules": ["q_proj", "embed_tokens"]}, "has matrices of embeddings"),
    "dora": ("llama", {"target_modules": ["q_proj"], "use_dora": True}, "has DoRA's magnitudes"),
    "lora_bias": ("llama_biased", {"target_modules": ["q_proj"], "lora_bias": True}, r"has biases .*\(lora_bias\)"),
    "rows": ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [1]}, r"\(trainable_token_indices\)"),
    "saved": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "has whole weights"),
}


@pytest.mark.parametrize("name", PEFT)
def test_what_peft_puts_into_an_adapter_is_loaded_and_merged_or_named(name: str, tmp_path: Path) -> None:
    """Judged by the tensors in it, before the base model is read."""
    from peft import LoraConfig, get_peft_model

    kind, options, sentence = PEFT[name]
    base = tmp_path / "base"
    save_model(base, kind.removesuffix("_biased"), tie_word_embeddings=False, **(BIASED if "biased" in kind else {}))
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    made = get_peft_model(plain, LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", **options)).eval()
    made.save_pretrained(tmp_path / "adapter")
    wanted = logits(made)
    if sentence is not None:
        (base / "model.safetensors").unlink()  # the sentence comes first
        with pytest.raises(UserError, match=sentence):
            load_policy(settings(tmp_path / "adapter", lora=lora(enabled=False)), seed=0)
        return
    loaded = load_for_inference(str(tmp_path / "adapter"))
    assert (logits(loaded) - wanted).abs().max() < 1e-4
    merged = load_policy(settings(tmp_path / "adapter", lora=lora(enabled=False)), seed=0)  # without model.lora: merged
    assert merged.adapters is None
    assert not lora_layers(merged.model)
    assert (logits(merged) - wanted).abs().max() < 1e-4
    going_on = load_for_inference(str(tmp_path / "adapter"))
    going_on.save(tmp_path / "again")
    assert (logits(load_for_inference(str(tmp_path / "again"))) - wanted).abs().max() < 1e-4
