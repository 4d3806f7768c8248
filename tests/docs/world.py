"""A folder in which the commands of a page can run: small trained runs, models, data, and the files that pages name."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.system.harness import DATA, LENGTH, ON_DATA, SCRATCH, run_train

COMMON = ("evaluation.num_examples=8", "evaluation.every=1", "trainer.checkpoint_every=1", "trainer.keep_last=9")
SHORT_WARM_START = (
    "warm_start.num_steps=3",
    "warm_start.batch_size=8",
    "warm_start.warmup_steps=0",
    "warm_start.final_phase_steps=0",
)
SMALL_MODEL = ("model.hidden_size=32", "model.num_layers=1", "model.num_heads=2", "model.intermediate_size=32")
SHORT = (
    "trainer.max_steps=1",
    "trainer.warmup_steps=0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=2",
    "evaluation.num_examples=4",
    "evaluation.every=1",
    "tracker.console=none",
)
"""What makes any training short; a model made from scratch takes SHORT_WARM_START, too."""

TOOLS = ("prompt.system='Answer with tools.'", "task.max_turns=4", "rollout.max_completion_tokens=32")
SEARCHING = ("musique", "hotpotqa", "wiki2")
PRETRAINED = ("gsm8k", "finqa", *SEARCHING)


@dataclass(frozen=True, kw_only=True)
class World:
    """Prepared once: `runs` by name, and two small models that speak with a chat template."""

    runs: dict[str, Path]
    model: Path
    tool_model: Path


RUNS = ("rpn", "two_hop", "meta", "musique", "lora")


def prepare(folder: Path, *, tool_model: Path, questions: tuple[Path, Path]) -> None:
    """Train the runs that pages talk about, a folder for each name. `questions` are a base model and a file for a run
    with LoRA."""
    from tests.system.test_adapters import SHORT as ADAPTERS

    base, sums = questions
    musique = (*(word for word in ON_DATA if "completion_tokens" not in word), *TOOLS, "model.lora.enabled=false")
    run_train(folder / "rpn", *LENGTH, *SCRATCH, *SHORT_WARM_START, *COMMON)
    two_hop = (*LENGTH, *SHORT_WARM_START, *COMMON, "rollout.max_completion_tokens=8")
    run_train(folder / "two_hop", *two_hop, name="two_hop")
    meta = (*LENGTH, *SHORT_WARM_START, *COMMON, "rollout.max_completion_tokens=4")
    run_train(folder / "meta", *meta, name="meta")
    run_train(
        folder / "musique",
        *musique,
        f"model.name_or_path={tool_model}",
        f"task.train_sets='{DATA / 'musique'},train'",
        f"task.eval_sets='{DATA / 'musique'},dev'",
        name="musique",
    )
    lora = (*ADAPTERS, f"model.name_or_path={base}", f"task.path={sums}", *COMMON)
    run_train(folder / "lora", *lora, name="gsm8k")


def furnish(folder: Path, world: World) -> None:
    """The files that pages name, and `runs/`."""
    (folder / "runs").mkdir()
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(6) for b in range(6)]
    (folder / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = [{"prompt": "3 4 + 5 *"}, {"prompt": "1 2 +"}]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (folder / "my_rewards.py").write_text("def score(completion, answer):\n    return float(answer in completion)\n")
    corpus = (DATA / "musique/corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus, mtime=0))
    shutil.copytree(DATA, folder / "tests/fixtures")
    scoring = {"vid": "1", "task": "gsm8k", "prediction": "#### 18", "golds": ["#### 18"]}
    (folder / "answers.jsonl").write_text(json.dumps(scoring) + "\n")


def point_latest(folder: Path, world: World, name: str) -> None:
    """Let runs/latest be a copy of a prepared run."""
    run = folder / "runs" / name
    if not run.is_dir():
        shutil.copytree(world.runs[name], run)
    latest = folder / "runs/latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(name)


def fill_in(words: tuple[str, ...], folder: Path, world: World, latest: str) -> list[str]:
    """The words with what a reader would put in: models, runs, checkpoints that exist, few examples."""
    is_tools = latest == "musique" or any(name in words for name in SEARCHING)
    values = {
        "PATH_OR_HUB_ID": str(world.tool_model if is_tools else world.model),
        "some/folder": "runs/latest/final",
        "MODEL": "runs/latest",
        "RUN": "runs/latest",
    }
    filled = []
    for word in words:
        for name, value in values.items():
            word = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", value, word)
        filled.append(re.sub(r"step_\d{6}", "step_000002", word))
    _copy_named(filled, folder, world, latest)
    return _fewer(filled)


def _copy_named(words: list[str], folder: Path, world: World, latest: str) -> None:
    """`runs/a` of a page about two runs is a copy of a prepared one."""
    before = ["", *words]
    for option, word in zip(before, words, strict=False):
        if option in ("--output", "--output-dir") or words[:2] == ["rlvr", "train"]:
            continue
        for name in re.findall(r"(?<![\w/.-])runs/([\w-]+)", word):
            if not (folder / "runs" / name).exists():
                shutil.copytree(world.runs[latest], folder / "runs" / name)


def _fewer(words: list[str]) -> list[str]:
    for option, most in (("--num-examples", 4), ("--samples-per-example", 4)):
        if option in words:
            place = words.index(option) + 1
            words[place] = str(min(int(words[place]), most))
        elif option == "--num-examples" and words[1:2] in (["eval"], ["benchmark"]):
            words += [option, str(most)]
    return words


def shorten(words: list[str], world: World) -> list[str]:
    """What is appended to a training so that it ends in a second. A run that goes on must stay as it was."""
    if "resume=true" in words:
        return []
    name = words[words.index("--config-name") + 1] if "--config-name" in words else "rpn"
    choices = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    task = choices.get("task", name)
    if "--config-dir" in words and words[words.index("--config-dir") + 1].startswith("runs/"):
        return ["tracker.console=none"]  # a run's own settings, which are short
    more = list(SHORT)
    is_pretrained = choices.get("model") == "hf" or (name in PRETRAINED and "model" not in choices)
    if is_pretrained:
        if not choices.get("model.name_or_path", "").startswith(("runs/", "/")):
            more.append(f"model.name_or_path={world.tool_model if task in SEARCHING else world.model}")
        if choices.get("model") != "hf":
            more += TOOLS if task in SEARCHING else ["rollout.max_completion_tokens=16"]
        if task in SEARCHING:
            more.append("model.lora.enabled=false")
    else:
        more += (*SHORT_WARM_START, *SMALL_MODEL)
    return more
