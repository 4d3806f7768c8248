"""Every task that rlvr ships, on a healthy tiny model of each architecture: `rlvr doctor` must find nothing.

RLVR_DATA=data python benchmarks/doctor_tasks.py

Needs the data of docs/data.md for gsm8k, finqa, musique, hotpotqa and wiki2; tasks without their data are named.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import doctor as bench
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

import rlvr
from rlvr.models.scratch import build_tokenizer
from rlvr.run.sources import inference_config
from rlvr.run.tasks import open_tasks

CONTEXT = 16_384
EVERY = bench.ARCHITECTURES | bench.UNUSUAL
NUM_TEXTS = 300
MARKERS = {"prompt.markers": "working_out"}  # `auto` names those of some families, and else says what to set
LINEAR = {"model.lora.target_modules": ["all-linear"]}  # layers have other names in phi3 and gpt_neox
TASKS: dict[str, dict[str, Any]] = {  # a configuration, and settings
    "gsm8k": MARKERS,
    "gsm8k, numeric": {"reward": "numeric"} | MARKERS,
    "gsm8k_smoke": {"rollout.max_completion_tokens": 96, "model.max_context_tokens": 200},  # another tokenizer
    "finqa": MARKERS,
    "finqa, programs": {"reward": "finqa_program", "task.answer": "program", "prompt": "financial_program"} | MARKERS,
    "musique": LINEAR,
    "musique, made": {"task.train_sets": "made[:700]", "task.eval_sets": "made[700:]"} | LINEAR,
    "musique_smoke": {},
    "hotpotqa": LINEAR,
    "wiki2": LINEAR,
    "reasoning_gym": {"task.dataset": "leg_counting"} | MARKERS,
    "rpn": {},
    "rpn_small": {},
    "rpn_test": {},
    "rpn, boxed": {"reward": "rpn_boxed"},
    "rpn, combined": {"reward": "rpn_combined"},
    "two_hop": {},
    "k_hop": {},
    "keep_one": {},
    "meta": {},
}


def task_of(name: str) -> str:
    return name.partition(",")[0]


def make_tokenizer(task: str, settings: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Of the task's own words, or bytes and pairs of its texts."""
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    config = inference_config("none", words, task=task)
    with open_tasks(config, "qwen2", {}) as tasks:
        if tasks.own.vocabulary is not None:
            return build_tokenizer(tasks.own.vocabulary)
        texts = list(itertools.islice(tasks.own.texts(), NUM_TEXTS))
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bpe.decoder = ByteLevelDecoder()
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=2000, special_tokens=bench.SPECIAL, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    end, pad = (bench.SPECIAL[index] for index in (bench.END, bench.PAD))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, pad_token=pad)


def save(architecture: str, tokenizer: PreTrainedTokenizerFast, folder: Path, seed: int) -> None:
    name, more = EVERY[architecture]
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT, "initializer_range": 0.1}
    prefix = "Gemma3Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{prefix}Config")(**bench.SIZES | sizes | ids | more)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():  # random models sample padding, whose embedding is 0 until it is trained
        model.get_input_embeddings().weight[tokenizer.pad_token_id].normal_(std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), help="some of them")
    parser.add_argument("--architectures", nargs="*", default=list(EVERY))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if data := os.environ.get("RLVR_DATA"):
        os.environ["RLVR_DATA"] = str(Path(data).resolve())
    alarms = tried = 0
    print(f"| task | {' | '.join(['models', 'alarms', 'seconds a model'])} |\n|---|---|---|---|")
    for name in args.tasks:
        settings = TASKS[name]
        found, count, begin = [], 0, time.perf_counter()
        tokenizer = make_tokenizer(task_of(name), settings)
        words = tokenizer.bos_token is not None
        for number, architecture in enumerate(args.architectures):
            if words and architecture == "qwen2":
                continue  # transformers reads its tokenizer as byte pairs, whatever the file holds
            tokenizer.chat_template = None if words else (bench.CHATML, bench.HERMES)[number % 2]
            count += 1
            with bench.in_a_folder():
                try:
                    save(architecture, tokenizer, Path("model"), args.seed)
                    checks = rlvr.doctor("model", task=task_of(name), **settings)
                except rlvr.errors.UserError as error:
                    found.append(f"{architecture}: {error}")
                    continue
            found += [f"{architecture}: {check.name} ({check.says})" for check in bench.failed(checks)]
        each = (time.perf_counter() - begin) / max(1, count)
        tried, alarms = tried + count, alarms + len(found)
        print(f"| {name} | {count} | {'<br>'.join(found) or 'none'} | {each:.1f} |", flush=True)
    print(f"\n{tried} healthy models, {alarms} false alarms", file=sys.stdout)


if __name__ == "__main__":
    main()
