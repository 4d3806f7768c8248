"""What a run's memory was said to be, and what it was: six runs of real models.

    python benchmarks/peak_memory.py --smollm2 FOLDER --gemma FOLDER
    python benchmarks/peak_memory.py --smollm2 FOLDER --parts saving

"runs": two steps of each, an evaluation before and after, a checkpoint and `final/`. "plan" is `rlvr plan` of the same
words, "memory:" the line that the run prints before it samples, "peak" the largest resident set of the process by
`/usr/bin/time -v`. "saving": by how much the resident set grows beyond what is resident before, while a checkpoint of a
model trained in full is written and read.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
COMMON = (
    "trainer.max_steps=2",
    "trainer.warmup_steps=0",
    "trainer.checkpoint_every=null",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "rollout.max_completion_tokens=16",
    "evaluation.num_examples=16",
    "evaluation.every=2",
    "+reward.parts.words={type:repetition,weight:1,ngram_size:1}",  # so that rewards differ
)
LORA = ("model.lora.enabled=true",)
RUNS = {
    "SmolLM2, in full": ("smollm2", ()),
    "SmolLM2, LoRA": ("smollm2", LORA),
    "SmolLM2, 4 bits, LoRA": ("smollm2", (*LORA, "model.load_in_4bit=true")),
    "SmolLM2, KL to the start": ("smollm2", ("algorithm.kl_coef=0.01",)),
    "Gemma 3 270M, in full": ("gemma", ()),
    "Gemma 3 270M, LoRA": ("gemma", LORA),
}


def measured(words: tuple[str, ...], folder: Path) -> tuple[float, float, float]:
    """GB of the plan, of the `memory:` line and at the peak."""
    env = os.environ | {"RLVR_DATA": os.environ.get("RLVR_DATA", str(FIXTURES))}
    rlvr = (sys.executable, "-m", "rlvr")
    common = ("--config-name", "gsm8k", *words)
    planned = subprocess.run(
        (*rlvr, "plan", "--json", "--seconds", "3", *common), env=env, capture_output=True, text=True
    )
    if planned.returncode:
        raise SystemExit(planned.stderr)
    run = ("/usr/bin/time", "-v", *rlvr, "train", *common, f"run_dir={folder}", "tracker.console=plain")
    done = subprocess.run(run, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    said = re.search(r"^memory: ([\d.,]+) (GB|MB)", done.stdout + done.stderr, re.MULTILINE)
    peak = re.search(r"Maximum resident set size \(kbytes\): (\d+)", done.stderr)
    assert said, done.stderr
    assert peak, done.stderr
    line = float(said[1].replace(",", "")) / (1 if said[2] == "GB" else 1000)
    return json.loads(planned.stdout)["memory_bytes"] / 1e9, line, int(peak[1]) * 1024 / 1e9


def show_runs(folders: dict[str, str | None], only: list[str] | None, more: list[str]) -> None:
    print("| run | peak | `memory:` | ratio | `rlvr plan` | ratio |\n|---|---|---|---|---|---|")
    for name, (model, words) in RUNS.items():
        if folders[model] is None or (only and name not in only):
            continue
        with tempfile.TemporaryDirectory(prefix="rlvr-peak-") as root:
            words = (f"model.name_or_path={folders[model]}", *COMMON, *words, *more)
            plan, line, peak = measured(words, Path(root) / "run")
        print(
            f"| {name} | {peak:.2f} GB | {line:.2f} | **{line / peak:.2f}** | {plan:.2f} | **{plan / peak:.2f}** |",
            flush=True,
        )


def show_saving(folder: str) -> None:
    import torch

    from rlvr.core.optimizer import adamw
    from rlvr.models.loading import load_policy
    from rlvr.models.settings import PretrainedModel
    from rlvr.scale.tensors import SavedTensors, files_of, write_tensors

    policy = load_policy(PretrainedModel(name_or_path=folder, dtype="float32"), seed=0)
    optimizer = adamw(policy.parameters(), beta1=0.9, beta2=0.999, weight_decay=0.0)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = {f"{n}/{k}": v for n, state in optimizer.state_dict()["state"].items() for k, v in state.items()}
    print(f"weights {sum(p.nbytes for p in policy.parameters()) / 1e6:,.0f} MB, moments "
          f"{sum(t.nbytes for t in moments.values()) / 1e6:,.0f} MB, largest tensor "
          f"{max(p.nbytes for p in policy.parameters()) / 1e6:,.0f} MB")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="rlvr-peak-") as root:
        file, model = Path(root) / "tensors.safetensors", Path(root) / "model"

        def read_moments() -> None:
            saved = SavedTensors(files_of(file))
            for name in saved:
                moments[name].copy_(saved[name])

        for what, act in steps(
            ("writes moments", lambda: write_tensors(file, moments)),
            ("writes the model", lambda: policy.save(model)),
            ("reads moments", read_moments),
            ("reads the model", lambda: policy.load_weights(model)),
        ):
            print(f"{what}: {act / 1e6:,.0f} MB more")


def steps(*acts: tuple[str, Callable[[], object]]) -> Iterator[tuple[str, int]]:
    for what, act in acts:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        before = resident("VmRSS")
        act()
        yield what, resident("VmHWM") - before


def resident(name: str) -> int:
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--gemma", help="folder of Gemma 3 270M")
    parser.add_argument("--parts", nargs="+", choices=("runs", "saving"), default=("runs", "saving"))
    parser.add_argument("--only", nargs="+", choices=tuple(RUNS), help="runs")
    parser.add_argument("words", nargs="*", help="more words for each run")
    args = parser.parse_args()
    if "runs" in args.parts:
        show_runs({"smollm2": args.smollm2, "gemma": args.gemma}, args.only, args.words)
    if "saving" in args.parts and args.smollm2:
        show_saving(args.smollm2)


if __name__ == "__main__":
    main()
