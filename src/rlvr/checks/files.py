"""Checks of a model's folder: files that contradict each other, and numbers of config.json that no model has."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rlvr.chat.rendering import end_ids
from rlvr.checks.patient import Patient, skip, verdict
from rlvr.models.gguf import files_of
from rlvr.models.hub import declared, is_local, locate
from rlvr.records.checks import Check

WEIGHTS = (  # in the order in which transformers looks for them
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
NUM_COMPARED = 4  # tensors of each set
LARGEST_GAP = 1e-2  # of a tensor's size; bfloat16 rounds by 4e-3
PROBES: tuple[list[dict[str, str]], ...] = (
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}],
)
TURN_ENDS = frozenset(
    f"<{name}>"
    for name in (
        *("|im_end|", "|eot_id|", "|eot|", "|eom_id|", "|end|", "|end_of_turn|", "|END_OF_TURN_TOKEN|", "|return|"),
        *("end_of_turn", "turn|", "|user|", "|role_end|"),
    )
)
"""Tokens that end a turn of a conversation, and nothing else."""
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon")
LARGEST_EPSILON = 1e-3  # published models have 1e-6 to 1e-5
LEAST_ATTENTION_CAP = 3.0  # nats; Gemma 2 has 50
NO_FOLDER = "the model is no folder here"


def folder_of(patient: Patient) -> Path | None:
    settings = patient.config.model.pretrained
    if settings is None or not is_local(settings.name_or_path):
        return None
    name = declared(settings.name_or_path)
    return Path(locate(name).name) if files_of(name) else Path(name)


def weights_are_one_set(patient: Patient) -> Check:
    """A folder that was saved into twice may hold two models, of which one is loaded."""
    folder = folder_of(patient)
    if folder is None:
        return skip(NO_FOLDER)
    there = [name for name in WEIGHTS if (folder / name).is_file()]
    if (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        there.append("adapter_config.json")
    used, *others = there or ["adapter_config.json"]
    first, differ = _tensors(folder, used) if others else {}, list[str]()
    for other in others:
        if other == "adapter_config.json" or any(_apart(first, other) for other in [_tensors(folder, other)]):
            differ.append(other)
    return verdict(
        bool(differ),
        f"the folder holds two models that differ: {used} and {', '.join(differ)}; {used} is loaded",
        f"the folder holds one model ({used})",
        f"delete what is not meant: transformers reads {used} and says nothing of the rest",
        used=used,
        others=others,
    )


def _tensors(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Some tensors of a set of weights, the first by name."""
    if name.endswith(".index.json"):
        listed = json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"]
        wanted = {key: folder / listed[key] for key in sorted(listed)[:NUM_COMPARED]}
        return {key: found[key] for key, file in wanted.items() if key in (found := dict(_of_file(file, [key])))}
    return dict(_of_file(folder / name, None))


def _of_file(file: Path, keys: list[str] | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of these names, or the first ones; none of a file that is not there."""
    if not file.is_file():
        return
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as opened:
            for key in keys or sorted(opened.keys())[:NUM_COMPARED]:
                yield key, opened.get_tensor(key)
    else:
        state: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        yield from ((key, state[key]) for key in keys or sorted(state)[:NUM_COMPARED] if key in state)


def _apart(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether tensors of the same name have other shapes or values; sets without a common name are not compared."""
    for key in first.keys() & second.keys():
        one, other = first[key].float(), second[key].float()
        if one.shape != other.shape:
            return True
        if float((one - other).norm()) > LARGEST_GAP * float(one.norm()):
            return True
    return False


def template_is_one(patient: Patient) -> Check:
    """tokenizer_config.json may hold a template, too: the file chat_template.jinja counts."""
    folder, tokenizer = folder_of(patient), patient.policy.tokenizer
    file = folder / "chat_template.jinja" if folder else None
    said = folder / "tokenizer_config.json" if folder else None
    if file is None or said is None or not file.is_file() or not said.is_file():
        return skip("no folder with a template in chat_template.jinja")
    inside: Any = json.loads(said.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(inside, list):  # several by name
        inside = next((one.get("template") for one in inside if one.get("name") == "default"), None)
    if not isinstance(inside, str):
        return verdict(False, "", "the template is in chat_template.jinja alone", "")
    rendered = [[_rendered(tokenizer, source, probe) for probe in PROBES] for source in (file.read_text(), inside)]
    return verdict(
        rendered[0] != rendered[1],
        "chat_template.jinja and the template in tokenizer_config.json render other texts; the file is used",
        "chat_template.jinja and the template in tokenizer_config.json render the same",
        "keep one of them: an edit of the template in tokenizer_config.json has no effect beside chat_template.jinja",
        file=rendered[0],
        tokenizer_config=rendered[1],
    )


def _rendered(tokenizer: Any, source: str, messages: list[dict[str, str]]) -> str:
    try:
        return tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates raise what they like
        return f"{type(error).__name__}: {error}"


def template_is_there(patient: Patient) -> Check:
    """A model that ends turns of conversations was taught a template."""
    tokenizer = patient.policy.tokenizer
    if tokenizer.chat_template:
        return verdict(False, "", "there is a chat template", "")
    names = {patient.coder.decode([token]) for token in end_ids(tokenizer, patient.model)}
    ends = sorted(names & TURN_ENDS)
    written = [end for end in ends if end in patient.coder.decode(patient.prompt(0)[1])]  # by the data
    return verdict(
        bool(ends) and not written,
        f"the tokenizer has no chat template, though completions end with {', '.join(map(repr, ends))}: the model was "
        "taught conversations, and would read bare questions",
        "the tokenizer has no chat template, and no end of a turn among its end tokens"
        if not ends
        else "the prompts of the data hold the marks of turns",
        "copy chat_template.jinja of the model that this one was trained from: it is a file of its own, which older "
        "tools leave behind",
        ends=ends,
    )


def config_is_possible(patient: Patient) -> Check:
    """Numbers that keep the network from computing what it was trained to."""
    config = patient.model.config.get_text_config()
    rows = int(config.vocab_size)
    bad = list[str]()
    for name in EPSILONS:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value > LARGEST_EPSILON:
            bad.append(f"{name}={value:g}: norms divide by it instead of by the activations; 1e-6 to 1e-5 are usual")
    cap = getattr(config, "final_logit_softcapping", None)
    if cap and (best := 1 / (1 + (rows - 1) * math.exp(-2 * cap))) < 0.5:
        bad.append(f"final_logit_softcapping={cap:g}: no token can have a probability over {best:.2g}; 30 is usual")
    cap = getattr(config, "attn_logit_softcapping", None)
    if cap and cap < LEAST_ATTENTION_CAP:
        bad.append(f"attn_logit_softcapping={cap:g}: no head can look at one token alone; 50 is usual")
    return verdict(
        bool(bad),
        f"config.json has {bad[0] if bad else ''}",
        "the numbers of config.json are such as models have",
        "compare config.json with that of the model that this one was trained from",
        found=bad,
    )


CHECKS = (weights_are_one_set, template_is_one, template_is_there, config_is_possible)
