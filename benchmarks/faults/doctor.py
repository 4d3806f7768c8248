"""`rlvr doctor` on tiny models, templates, tokenizers, data, rewards, settings and tools with planted faults.

    python benchmarks/faults/doctor.py
    python benchmarks/faults/doctor.py --only BOS --kind template
    RLVR_DATA=data python benchmarks/faults/doctor.py --tasks

A fault is rightly named if the first check that fails is one of those made for it; `load` is a refusal before any.
Each is planted in the architecture that its name draws. Sound models, settings and tasks must fail no check.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from zlib import crc32

import transformers
from chatml import CHATML, HERMES, SPECIAL, THINKS
from of_chats import TEMPLATES
from of_models import CHECKPOINTS, MODELS, TOKENIZERS
from of_runs import DATA, REWARDS, SETTINGS, TOOLS
from patients import (
    ARCHITECTURES,
    EXAMPLES,
    LORA,
    UNUSUAL,
    Case,
    Change,
    byte_pairs,
    case_of,
    examine,
    in_a_folder,
    make_model,
)
from table import Fault, Verdict, parser_of, run
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import rlvr

KINDS = {
    "checkpoint": CHECKPOINTS,
    "model": MODELS,
    "tokenizer": TOKENIZERS,
    "template": TEMPLATES,
    "data": DATA,
    "reward": REWARDS,
    "settings": SETTINGS,
    "tool": TOOLS,
}


def healthy() -> Iterator[tuple[str, Change]]:
    for number, name in enumerate(ARCHITECTURES):
        more: dict[str, Any] = {"template": HERMES, "with_tools": True} if number % 2 else {"template": CHATML}
        yield name, case_of(architecture=name, settings=LORA if number % 3 == 2 else {}, **more)
    yield from ((name, case_of(architecture=name)) for name in UNUSUAL)
    yield "no template", case_of(architecture="llama", template=None)
    yield "opens reasoning", case_of(architecture="qwen3", template=THINKS, settings={"prompt": "boxed"})


def table() -> Iterator[Fault]:
    for kind, rows in KINDS.items():
        for name, right, change, invented in rows:
            yield Fault(name, kind if right else "sound", tuple(filter(None, right.split("|"))), change, str(invented))
    for name, change in healthy():
        yield Fault(f"healthy: {name}", "sound", (), change, "1")


TABLE = list(table())


def judged(checks: list[Any], is_sound: bool, architecture: str) -> Verdict:
    """The first check that failed, or all of those of a sound model."""
    failed = [check.name for check in checks if check.status == "fail"]
    return Verdict(tuple(failed[: None if is_sound else 1]), f" ({architecture})")


def judge(fault: Fault, seed: int) -> Verdict:
    names = list(ARCHITECTURES)
    case: Case = fault.made(Case(architecture=names[crc32(fault.name.encode()) % len(names)]))
    with in_a_folder(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        return judged(examine(case, seed), not fault.right, case.architecture)


# ------------------------------------------------------------------------------------------------- shipped tasks

MARKERS = {"prompt.markers": "working_out"}  # `auto` names those of some families, and else says what to set
LINEAR = {"model.lora.target_modules": ["all-linear"]}  # layers have other names in phi3 and gpt_neox
PROGRAMS = {"reward": "finqa_program", "task.answer": "program", "prompt": "financial_program"}
OWN_WORDS = ("rpn", "rpn_small", "rpn_test", "two_hop", "k_hop", "keep_one", "meta")  # tasks with a vocabulary
TASKS: dict[str, dict[str, Any]] = {  # a configuration, and settings
    "gsm8k": MARKERS,
    "gsm8k, numeric": {"reward": "numeric"} | MARKERS,
    "gsm8k_smoke": {"rollout.max_completion_tokens": 96, "model.max_context_tokens": 200},  # another tokenizer
    "finqa": MARKERS,
    "finqa, programs": PROGRAMS | MARKERS,
    "musique": LINEAR,
    "musique, made": {"task.train_sets": "made[:700]", "task.eval_sets": "made[700:]"} | LINEAR,
    "musique_smoke": {},
    "hotpotqa": LINEAR,
    "wiki2": LINEAR,
    "reasoning_gym": {"task.dataset": "leg_counting"} | MARKERS,
    **{name: {} for name in OWN_WORDS},
    "rpn, boxed": {"reward": "rpn_boxed"},
    "rpn, combined": {"reward": "rpn_combined"},
}


def tokenizer_of(task: str) -> Any:
    """Of the task's own words, or pairs of bytes of English."""
    if task in OWN_WORDS:
        start = {"trainer.max_steps": 0, "warm_start.enabled": False, "tracker.console": "none"}
        return AutoTokenizer.from_pretrained(rlvr.train(config_name=task, run_dir="words", **start).folder / "final")
    texts = (path.read_text() for path in sorted((EXAMPLES.parents[1] / "docs").glob("*.md")))
    return PreTrainedTokenizerFast(tokenizer_object=byte_pairs(texts, 2000), eos_token=SPECIAL[2], pad_token=SPECIAL[0])


def judge_task(fault: Fault, seed: int) -> Verdict:
    """The shipped task on a healthy tiny model."""
    (task, settings), architecture = fault.made, fault.name.rpartition(" on ")[2]
    with in_a_folder(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        tokenizer = tokenizer_of(task)
        if tokenizer.bos_token is None:
            tokenizer.chat_template = (CHATML, HERMES)[len(architecture) % 2]
        ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 16_384}
        model = make_model(architecture, sizes | ids, seed)
        # random models sample padding, whose embedding is 0 until it is trained
        model.get_input_embeddings().weight.data[tokenizer.pad_token_id].normal_(std=0.1)
        model.save_pretrained("model")
        tokenizer.save_pretrained("model")
        return judged(rlvr.doctor("model", task=task, **settings), True, architecture)


def shipped(architectures: list[str]) -> Iterator[Fault]:
    for name, settings in TASKS.items():
        task = name.partition(",")[0]
        for architecture in architectures:
            if task not in OWN_WORDS or architecture != "qwen2":  # whose tokenizer is read as byte pairs
                yield Fault(f"{name} on {architecture}", "sound", (), (task, settings), "task")


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--tasks", action="store_true", help="instead the shipped tasks on healthy models")
    parser.add_argument("--architectures", nargs="+", default=["llama", "gpt_neox"], help="of --tasks")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    # processes that score import rewards and tasks by their names
    places = [str(EXAMPLES), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    if data := os.environ.get("RLVR_DATA"):
        os.environ["RLVR_DATA"] = str(Path(data).resolve())
    if arguments.tasks:
        run(list(shipped(arguments.architectures)), arguments, lambda fault: judge_task(fault, arguments.seed))
    else:
        run(TABLE, arguments, lambda fault: judge(fault, arguments.seed))


if __name__ == "__main__":
    main()
