"""Plant faults that users' models, templates, tokenizers and rewards have, and count those that `rlvr doctor` names.

python benchmarks/doctor.py                         every fault on two architectures, every architecture healthy
python benchmarks/doctor.py --faults tail --verbose one of them

A fault is found if a check fails, and rightly named if the first check that fails is one of those expected.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import doctor_rewards as rewards
import torch
import transformers
from tokenizers import Tokenizer, normalizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

import rlvr
from rlvr.commands.doctor import body
from rlvr.tracking.checks import Check

EXAMPLES = Path(__file__).parents[1] / "examples" / "own"
sys.path.insert(0, str(EXAMPLES))
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>"]
PAD, START, END, BOS = range(4)
ROWS = [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a in range(1, 12) for b in range(20, 31)]

CHATML = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

THINKS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")

CALLS = """{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}"""
HERMES = """{% set given = messages %}{% if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% set given = messages[1:] %}{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call as <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}{% for m in given %}{% if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}CALLS<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""".replace("CALLS", CALLS)

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED),
    "qwen2": ("Qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", GROUPED),
    "mistral": ("Mistral", GROUPED | {"sliding_window": None}),
    "gemma2": ("Gemma2", GROUPED | SLIDING | {"query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3", GROUPED | SLIDING | {"query_pre_attn_scalar": 16}),
    "phi3": ("Phi3", {"num_key_value_heads": 1}),
    "gpt_neox": ("GPTNeoX", {}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 1}),
    "granite": ("Granite", {"num_key_value_heads": 1, "logits_scaling": 4.0, "embedding_multiplier": 3.0}),
    "cohere": ("Cohere", {"num_key_value_heads": 1, "logit_scale": 0.25}),
    "stablelm": ("StableLm", {"num_key_value_heads": 1}),
    "smollm3": ("SmolLM3", {"num_key_value_heads": 1}),
}
LINEAR_HEADS = {f"linear_{kind}": 2 for kind in ("num_key_heads", "num_value_heads")}
LINEAR_HEADS |= {f"linear_{kind}": 16 for kind in ("key_head_dim", "value_head_dim")}
UNUSUAL: dict[str, tuple[str, dict[str, Any]]] = {  # only healthy ones: faults are planted in those above
    "falcon": ("Falcon", {"alibi": False}),  # attention of its own
    "gpt_oss": ("GptOss", GROUPED | SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_next": (
        "Qwen3Next",
        GROUPED
        | LINEAR_HEADS
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"]},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model folder, and how it is examined."""

    architecture: str
    template: str | None = CHATML
    tokenizer: Callable[[PreTrainedTokenizerFast], Any] = lambda tokenizer: tokenizer
    config: dict[str, Any] = field(default_factory=dict)  # of the model
    saved: Callable[[Any, Path], None] = lambda model, folder: None  # changes the model before it is saved
    loaded: Callable[[Any], None] = lambda policy: None  # what the model's own code does
    with_tools: bool = False  # questions with a tool, in several turns
    rows: list[dict[str, Any]] = field(default_factory=lambda: ROWS)
    reward: Callable[..., Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def is_the_whole_text(completion: str, answer: str) -> float:
    return float(completion.strip() == answer)


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str
    expected: tuple[str, ...]
    change: Callable[[Case], Case]


def texts() -> Iterator[str]:
    for row in ROWS:
        yield f"{row['question']} {row['answer']} Think step by step. The answer is \\boxed{{{row['answer']}}}."
    yield (EXAMPLES / "my_shop.py").read_text()


@cache
def vocabulary() -> str:
    """A byte-level BPE tokenizer, as JSON."""
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bpe.decoder = ByteLevelDecoder()
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts(), trainer)
    return bpe.to_str()


def make_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    bpe = Tokenizer.from_str(vocabulary())
    end = SPECIAL[BOS if template is None else END]  # without a template nothing was taught to end turns
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, pad_token=SPECIAL[PAD])
    tokenizer.chat_template = template
    return tokenizer


def save(case: Case, folder: Path, seed: int) -> None:
    name, more = (ARCHITECTURES | UNUSUAL)[case.architecture]
    tokenizer = make_tokenizer(case.template)
    tokenizer = case.tokenizer(tokenizer) or tokenizer
    given: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 2048,
        "initializer_range": 0.1,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": BOS if case.template is None else END,
    }
    prefix = "Gemma3Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{prefix}Config")(**SIZES | given | more | case.config)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    case.saved(model, folder)


def examine(case: Case, seed: int = 0) -> list[Check]:
    """The checks of `rlvr.doctor` on the case; a refusal to load is a failed check called `load`."""

    def load(*arguments: Any, **named: Any) -> Any:
        policy = real(*arguments, **named)
        case.loaded(policy)
        return policy

    real, folder = body.load_policy, Path("model")
    save(case, folder, seed)
    more: dict[str, Any] = {
        "rollout.max_completion_tokens": 64 if case.with_tools else 24,
        "evaluation.num_examples": 4,
        **case.settings,
    }
    if case.with_tools:
        arguments: dict[str, Any] = {"task": "my_shop:Shop", "task.num_questions": 80}
    else:
        arguments = {"data": case.rows}
        if case.reward is None:
            more = {"reward": "numeric", "prompt": "plain", **more}
    if case.reward is not None:
        more["reward"] = case.reward
    with patch.object(body, "load_policy", load):
        try:
            return rlvr.doctor(folder, **arguments | more)
        except rlvr.errors.UserError as error:
            return [Check(name="load", status="fail", says=str(error))]


@contextmanager
def in_a_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


# ------------------------------------------------------------------------------------------------------ templates


def template(text: str, **changes: Any) -> Callable[[Case], Case]:
    return lambda case: replace(case, template=text, with_tools=True, **changes)


def swapped(old: str, new: str, base: str = CHATML) -> Callable[[Case], Case]:
    assert old in base, old
    return template(base.replace(old, new))


CONTENT = "{{ m['content'] }}"
HEAD = "{% for m in messages %}"
USER_REPLY = ("appends_after_user", "appends_after_tools")
LATER = "m.role == 'assistant' and not loop.last"
TEMPLATES = [
    ("strips the spaces of earlier turns", ("keeps_spaces",), swapped(CONTENT, "{{ m['content'] | trim }}")),
    (
        "drops the reasoning of earlier turns",
        ("keeps_reasoning",),
        swapped(
            CONTENT,
            "{{ m['content'].split('</think>')[-1].lstrip('\\n') if " + LATER + " else m['content'] }}",
        ),
    ),
    (
        "writes the date",
        ("same_every_day",),
        swapped(HEAD, "Today is {{ strftime_now('%d %b %Y') }}.\n" + HEAD),
    ),
    (
        "adds a system prompt to the first question only",
        USER_REPLY,
        swapped(HEAD, "{% if messages|length == 1 %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}" + HEAD),
    ),
    (
        "ignores add_generation_prompt",
        ("opens_completion",),
        swapped("{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", ""),
    ),
    (
        "opens a user's turn for the completion",
        ("opens_completion",),
        swapped("%}<|im_start|>assistant\n{% endif %}", "%}<|im_start|>user\n{% endif %}"),
    ),
    ("writes BOS twice", ("one_bos",), lambda case: with_bos(template("<|bos|><|bos|>" + CHATML)(case))),
    ("forgets BOS", ("one_bos",), lambda case: with_bos(template(CHATML)(case))),
    (
        "renders tool results as the assistant's words",
        ("tool_results",),
        swapped("{{ m['role'] }}", "{{ 'assistant' if m['role'] == 'tool' else m['role'] }}"),
    ),
    (
        "sorts messages by role",
        ("whole_messages",),
        swapped("in messages %}", "in messages | sort(attribute='role') %}"),
    ),
    (
        "leaves out the line break after the last turn",
        USER_REPLY,
        swapped("<|im_end|>\n{% endfor %}", "<|im_end|>{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"),
    ),
    (
        "opens reasoning, and the reward reads the whole completion",
        ("thoughts_are_passed_over",),
        lambda case: replace(case, template=THINKS, reward=is_the_whole_text),
    ),
    (
        "writes a user's later words as the assistant's",
        ("roles_kept", "whole_messages"),
        swapped("{{ m['role'] }}", "{{ 'assistant' if m['role'] == 'user' and loop.index0 > 2 else m['role'] }}"),
    ),
    ("truncates long messages", ("whole_messages",), swapped(CONTENT, "{{ m['content'][:2000] }}")),
    (
        "truncates arguments of calls",
        ("whole_calls",),
        swapped("arguments | tojson", "arguments | tojson | truncate(300)", HERMES),
    ),
    ("escapes HTML", ("whole_messages",), swapped(CONTENT, "{{ m['content'] | e }}")),
    ("numbers the turns from the end", USER_REPLY, swapped("{{ m['role'] }}", "{{ m['role'] }} {{ loop.revindex }}")),
    ("shows the last question only", ("whole_messages", *USER_REPLY), swapped("in messages %}", "in messages[-1:] %}")),
    (
        "ends turns with a word that is no token",
        ("ends_turns",),
        lambda case: template(CHATML.replace("<|im_end|>", "<|turn_end|>"))(case),
    ),
    (
        "ends turns with another token than the generation config",
        ("ends_turns",),
        lambda case: replace(template(CHATML)(case), tokenizer=ends_with_pad, config={"eos_token_id": PAD}),
    ),
]


def with_bos(case: Case) -> Case:
    def change(tokenizer: PreTrainedTokenizerFast) -> None:
        from tokenizers.processors import TemplateProcessing

        tokenizer.bos_token = "<|bos|>"
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)]
        )

    return replace(case, tokenizer=change, config={"bos_token_id": BOS})


def ends_with_pad(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.eos_token = SPECIAL[PAD]


# ------------------------------------------------------------------------------------------------------ tokenizers


def lowercase(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


def words_only(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    words = [*SPECIAL, "<unk>", *sorted({word for text in texts() for word in text.replace("?", " ?").split()})]
    made = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIAL[END], pad_token=SPECIAL[PAD], unk_token="<unk>"
    )
    fast.chat_template = tokenizer.chat_template
    return fast


def more_words(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_tokens([f"new-word-{number}" for number in range(20)])


TOKENIZERS = [
    ("lowers the case", ("text_survives",), lambda case: replace(case, tokenizer=lowercase)),
    ("knows no other words", ("text_survives",), lambda case: replace(case, tokenizer=words_only)),
    (
        "has tokens that the model lacks",
        ("vocabulary_fits",),
        lambda case: replace(case, tokenizer=more_words, config={"vocab_size": 500}),
    ),
    (
        "is smaller than the vocabulary sampled from",
        ("vocabulary_fits",),
        lambda case: replace(case, config={"vocab_size": 900}),
    ),
    (
        "pads with the end of turns: its embedding is masked",
        ("end_token_learns",),
        lambda case: replace(case, with_tools=True, config={"pad_token_id": END}),
    ),
]


# ---------------------------------------------------------------------------------------------------------- models


def weight_with_nan(policy: Any) -> None:
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[7] = float("nan")


def saved_with_nan(model: Any, folder: Path) -> None:
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    model.save_pretrained(folder)


def first_layer(policy: Any) -> Any:
    return next(m for m in policy.model.modules() if isinstance(m, torch.nn.ModuleList))[0]


def always_drops(policy: Any) -> None:
    def drop(module: Any, given: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = torch.nn.functional.dropout(hidden, 0.1, training=True)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    first_layer(policy).register_forward_hook(drop)


def hotter(policy: Any) -> None:
    """The model's forward divides its logits, and its config does not say so."""
    policy.model.register_forward_hook(lambda module, given, output: scaled(output))


def scaled(output: Any) -> Any:
    output.logits = output.logits / 1.5
    return output


def capped(policy: Any) -> None:
    def cap(module: Any, given: Any, output: Any) -> Any:
        output.logits = torch.tanh(output.logits / 0.5) * 0.5
        return output

    policy.model.register_forward_hook(cap)


def cache_in(named: dict[str, Any]) -> Any:
    """The cache among a forward's arguments; transformers 5.24 renames it."""
    return named.get("cache", named.get("past_key_values"))


def ignores(*names: str) -> Callable[[Any], None]:
    """The model's own code takes some arguments and does not use them."""

    def plant(policy: Any) -> None:
        base = policy.model.base_model
        forward = base.forward

        def without(*arguments: Any, **named: Any) -> Any:
            packed = getattr(named.get("attention_mask"), "dim", lambda: 0)() == 4 and cache_in(named) is None
            kept = {name: value for name, value in named.items() if not (packed and name in names)}
            return forward(*arguments, **kept)

        base.forward = without

    return plant


def leaks_far(policy: Any) -> None:
    """Attention sees its neighbors where lines are long: the probe at the start of a run has short ones."""
    base = policy.model.base_model
    forward = base.forward

    def leaking(*arguments: Any, **named: Any) -> Any:
        mask = named.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.dim() == 4 and mask.shape[-1] > 40 and not cache_in(named):
            open_ = torch.ones_like(mask, dtype=torch.bool).tril()
            named["attention_mask"] = open_ if mask.dtype == torch.bool else torch.where(open_, 0.0, mask.min())
        return forward(*arguments, **named)

    base.forward = leaking


def sees_the_future(policy: Any) -> None:
    def mix(module: Any, given: Any, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 0.5 * torch.cat([hidden[:, 1:], hidden[:, -1:]], 1)

    policy.model.get_input_embeddings().register_forward_hook(mix)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return -gradient


def wrong_backward(policy: Any) -> None:
    def hook(module: Any, given: Any, output: Any) -> Any:
        return (Halved.apply(output[0]), *output[1:]) if isinstance(output, tuple) else Halved.apply(output)

    first_layer(policy).register_forward_hook(hook)


def detached(policy: Any) -> None:
    def hook(module: Any, given: Any, output: Any) -> Any:
        return (output[0].detach(), *output[1:]) if isinstance(output, tuple) else output.detach()

    policy.model.get_input_embeddings().register_forward_hook(hook)


def frozen(policy: Any) -> None:
    first_layer(policy).requires_grad_(False)


def base_trains(policy: Any) -> None:
    policy.model.get_input_embeddings().weight.requires_grad_(True)


def dead_adapters(policy: Any) -> None:
    from rlvr.models.adapters import adapter_weights

    for weight in adapter_weights(policy.model).values():
        weight.data.zero_()


def idle_adapters(policy: Any) -> None:
    """Adapters that the model's own code goes around."""
    from rlvr.models.adapters import lora_layers

    for layer in lora_layers(policy.model).values():
        layer.forward = layer.get_base_layer().forward


def never_ends(policy: Any) -> None:
    def hook(module: Any, given: Any, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.clone()
        logits[..., [PAD, END]] = -1e4
        return logits

    policy.model.get_output_embeddings().register_forward_hook(hook)


def forgot_to_resize(model: Any, folder: Path) -> None:
    """The vocabulary was resized by hand, and config.json has the old size."""
    model.config.get_text_config().vocab_size -= 20
    model.config.save_pretrained(folder)


def buffer_not_saved(policy: Any) -> None:
    policy.model.register_buffer("shift", 0.3 * torch.randn(policy.model.config.get_text_config().vocab_size), False)
    head = policy.model.get_output_embeddings()
    head.register_forward_hook(lambda module, given, logits: logits + policy.model.shift)


LORA = {"model.lora.enabled": True, "model.dtype": "float32", "model.lora.target_modules": ["all-linear"]}
MODELS: list[tuple[str, tuple[str, ...], Callable[[Case], Case]]] = [
    ("has NaN in one row", ("weights_finite",), lambda case: replace(case, saved=saved_with_nan)),
    ("drops out in eval mode", ("passes_repeat",), lambda case: replace(case, loaded=always_drops)),
    ("divides its logits in forward only", ("trainer_is_model",), lambda case: replace(case, loaded=hotter)),
    ("caps its logits in forward only", ("trainer_is_model",), lambda case: replace(case, loaded=capped)),
    ("ignores position_ids", ("packed_alone",), lambda case: replace(case, loaded=ignores("position_ids"))),
    ("ignores attention masks", ("packed_alone",), lambda case: replace(case, loaded=ignores("attention_mask"))),
    ("sees neighbors in long lines", ("packed_alone",), lambda case: replace(case, loaded=leaks_far)),
    ("sees the next token", ("is_causal",), lambda case: replace(case, loaded=sees_the_future)),
    ("has a layer with a wrong backward", ("gradient_is_slope",), lambda case: replace(case, loaded=wrong_backward)),
    ("detaches its embeddings", ("weights_learn",), lambda case: replace(case, loaded=detached)),
    ("freezes a layer", ("weights_learn",), lambda case: replace(case, loaded=frozen)),
    (
        "trains its base beside adapters",
        ("weights_learn",),
        lambda case: replace(case, loaded=base_trains, settings=LORA),
    ),
    ("has dead adapters", ("weights_learn",), lambda case: replace(case, loaded=dead_adapters, settings=LORA)),
    ("goes around its adapters", ("weights_learn",), lambda case: replace(case, loaded=idle_adapters, settings=LORA)),
    ("never samples a stop token", ("stop_is_possible",), lambda case: replace(case, loaded=never_ends)),
    ("has more rows than its config says", ("load",), lambda case: replace(case, saved=forgot_to_resize)),
    (
        "computes with a buffer that is not saved",
        ("saves_and_loads",),
        lambda case: replace(case, loaded=buffer_not_saved),
    ),
    (
        "has too little context",
        ("prompts_fit",),
        lambda case: replace(case, config={"max_position_embeddings": 40}),
    ),
]


# --------------------------------------------------------------------------------------------------------- rewards


REWARDS: list[tuple[str, tuple[str, ...], Callable[..., Any]]] = [
    ("pays the empty answer", ("empty_scores_less",), rewards.pays_empty),
    ("never pays the gold answer", ("gold_scores_full",), rewards.never),
    ("raises on what is no number", ("empty_scores_less", "reward_survives"), rewards.raises),
    ("pays for repeating the question", ("echo_scores_less",), rewards.echoes),
    ("draws random numbers", ("reward_repeats",), rewards.draws),
    ("doubles in every other second", ("reward_is_timeless",), rewards.looks_at_the_clock),
    ("is constant", ("empty_scores_less", "wrong_scores_less"), rewards.constant),
    ("pays any number", ("wrong_scores_less",), rewards.pays_any_number),
    ("returns NaN for long completions", ("reward_survives",), rewards.returns_nan),
]


def faults() -> list[Fault]:
    found = [Fault(name, "template", expected, change) for name, expected, change in TEMPLATES]
    found += [Fault(name, "tokenizer", expected, change) for name, expected, change in TOKENIZERS]
    found += [Fault(name, "model", expected, change) for name, expected, change in MODELS]
    for name, expected, reward in REWARDS:
        found.append(Fault(name, "reward", expected, lambda case, reward=reward: replace(case, reward=reward)))
    return found


def healthy() -> list[tuple[str, Case]]:
    cases = []
    for number, name in enumerate(ARCHITECTURES):
        case = Case(architecture=name, template=(CHATML, HERMES)[number % 2], with_tools=number % 2 == 1)
        cases.append((name, replace(case, settings=LORA) if number % 3 == 2 else case))
    cases += [(name, Case(architecture=name)) for name in UNUSUAL]
    cases.append(("llama, no template", Case(architecture="llama", template=None)))
    cases.append(("qwen3, opens reasoning", Case(architecture="qwen3", template=THINKS, settings={"prompt": "boxed"})))
    cases.append(("qwen2, reward of its own", Case(architecture="qwen2", reward=rewards.right)))
    return cases


def failed(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.status == "fail"]


def tried(case: Case, seed: int, verbose: bool) -> tuple[list[Check], float]:
    begin = time.perf_counter()
    transformers.logging.set_verbosity_error()
    with in_a_folder(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        checks = failed(examine(case, seed))
    if verbose:
        for check in checks:
            print(f"    {check.name}: {check.says[:200]} {str(dict(check.evidence))[:200]}")
    return checks, time.perf_counter() - begin


@dataclass
class Tally:
    planted: int = 0
    found: int = 0
    named: int = 0
    seconds: list[float] = field(default_factory=list)

    def told(self) -> str:
        shares = [f"{count} ({count / max(1, self.planted):.1%})" for count in (self.found, self.named)]
        return f"planted: {self.planted}, found {shares[0]}, rightly named {shares[1]}"


def survey(faults: list[Fault], *, each: int, seed: int, verbose: bool, tally: Tally) -> None:
    """Print a row of a table for each fault, planted in `each` architectures."""
    names = list(ARCHITECTURES)
    for number, fault in enumerate(faults):
        said = []
        for place in range(each):
            architecture = names[(number + 6 * place) % len(names)]
            case = fault.change(Case(architecture=architecture))
            checks, took = tried(case, seed, verbose)
            tally.seconds.append(took)
            first = checks[0].name if checks else "nothing"
            right = first in fault.expected
            tally.planted, tally.found, tally.named = tally.planted + 1, tally.found + bool(checks), tally.named + right
            said.append(f"{case.architecture}: {first}" + ("" if right else " (wrong)"))
        print(f"| {fault.kind} | {fault.name} | {'; '.join(said)} |", flush=True)


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The common ones; also makes these folders importable for the processes that score."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=2, help="architectures for each fault")
    parser.add_argument("--faults", default="", help="only those with this text in their name")
    parser.add_argument("--verbose", action="store_true", help="show what each check found")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(EXAMPLES), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    return parser.parse_args()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", action="store_true", help="only the healthy ones")
    args = arguments(parser)
    tally, alarms = Tally(), 0
    for name, case in healthy() if not args.faults else []:
        checks, took = tried(case, args.seed, args.verbose)
        tally.seconds.append(took)
        alarms += len(checks)
        print(f"healthy {name}: {', '.join(check.name for check in checks) or 'ok'} ({took:.1f} s)", flush=True)
    if not args.faults:
        print(f"\nhealthy: {len(healthy())} models, {alarms} false alarms\n")
    if not args.healthy:
        chosen = [fault for fault in faults() if args.faults in fault.name]
        survey(chosen, each=args.each, seed=args.seed, verbose=args.verbose, tally=tally)
        print(f"\n{tally.told()}")
    print(
        f"seconds a model: {sum(tally.seconds) / len(tally.seconds):.1f} on average, {max(tally.seconds):.1f} at most"
    )


if __name__ == "__main__":
    main()
