"""Times the report of a run with 20,000 episodes of 64 tokens: writing, opening, size.

The writers of `rlvr train` make the run folder from random words and numbers, which compress worse than model output.
Written: `rlvr.report` in this process, without torch; CPU time equals wall time on an idle machine. Opened: headless
Chromium, from disk, a new page each time, until curves are drawn (`curves`), or until the list of episodes is shown and
all texts are searchable (`rollouts`). Filter: until the next frame with the shorter list.

    python benchmarks/report.py --rounds 5
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from playwright.sync_api import Browser, Page, sync_playwright
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlvr.records.jsonl import MetricsFile
from rlvr.records.rollouts import EpisodeRecord, RowRecord, TurnRecord, rollouts_path, write_rollouts
from rlvr.report.run import write_run_report

PROMPT_TOKENS, COMPLETION_TOKENS, GROUP = 24, 40, 8
TARGETS = {"written": "<= 20 s", "size": "<= 30 MB", "rollouts": "<= 3 s", "filter": "<= 200 ms"}

FILTERS = (  # each is set, measured and reset
    ("text", '[aria-label^="text"]', "tara"),
    ("text, two letters", '[aria-label^="text"]', "ta"),
    ("reward", '[aria-label="lowest reward"]', "0.5"),
    ("order by advantage", '[aria-label="order"]', "advantage_down"),
    ("step", '[aria-label="step"]', "3"),
)
SET = """([selector, value]) => new Promise((done) => {
  const node = document.querySelector(selector);
  const start = performance.now();
  node.value = value;
  node.dispatchEvent(new Event(node.tagName === "SELECT" ? "change" : "input", {bubbles: true}));
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""


def words(count: int) -> list[str]:
    """Different words of four letters: `bata`, `bate`, ..."""
    syllables = [a + b for a in "btkdgmnrslpf" for b in "aeiou"]
    return [first + second for first in syllables for second in syllables][:count]


def make_run(folder: Path, num_episodes: int, num_steps: int, seed: int = 0) -> None:
    """Write a finished run whose rollouts are spread over 100 steps."""
    source, vocabulary = random.Random(seed), words(2000)
    folder.mkdir(parents=True)
    metrics = MetricsFile(folder / "metrics.jsonl")
    names = [f"reward/{part}" for part in ("mean", "std", "correct", "format")]
    names += [f"rollout/{name}_share" for name in ("truncated", "invalid", "error", "zero_advantage", "empty_mask")]
    names += [
        f"policy/{name}" for name in ("entropy", "grad_norm", "approx_kl", "mismatch_kl", "ratio", "clip_fraction")
    ]
    names += ["loss/total", "loss/policy", "time/step_s", "time/tokens_per_s", "system/peak_memory_mb"]
    for step in range(1, num_steps + 1):
        metrics.append(step, {name: source.random() for name in names})
    num_files = 100
    for number in range(num_files):
        step = 1 + number * num_steps // num_files
        records = [_episode(source, vocabulary, index) for index in range(num_episodes // num_files)]
        write_rollouts(rollouts_path(folder / "rollouts", step), records)
    (folder / "final").mkdir()
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.save(str(folder / "final" / "tokenizer.json"))


def _episode(source: random.Random, vocabulary: Sequence[str], index: int) -> EpisodeRecord:
    prompt_source = random.Random(index // GROUP)  # a group shares its prompt
    prompt = [prompt_source.randrange(len(vocabulary)) for _ in range(PROMPT_TOKENS)]
    completion = [source.randrange(len(vocabulary)) for _ in range(COMPLETION_TOKENS)]
    behavior = [-source.expovariate(1) for _ in completion]
    reward, advantage = float(source.random() < 0.4), source.gauss(0, 1)
    before = [0.0] * PROMPT_TOKENS
    turn = TurnRecord(
        prompt_ids=prompt,
        completion_ids=completion,
        prompt=" ".join(vocabulary[token] for token in prompt),
        completion=" ".join(vocabulary[token] for token in completion),
        stop_reason="stop",
        policy_version=0,
        behavior_logprobs=list(behavior),
        sampling_logprobs=list(behavior),
        calls=(),
        reply=None,
    )
    row = RowRecord(
        ids=prompt + completion,
        loss_mask=[0] * PROMPT_TOKENS + [1] * COMPLETION_TOKENS,
        behavior_logprobs=[*before, *behavior],
        trainer_logprobs=[*before, *(value + source.gauss(0, 1e-4) for value in behavior)],
        reference_logprobs=None,
        values=None,
        advantages=[*before, *[advantage] * COMPLETION_TOKENS],
        returns=None,
    )
    return EpisodeRecord(
        example_id=f"example {prompt_source.randrange(10**9)}",
        answer=vocabulary[prompt[0]],
        group=index // GROUP,
        sample_index=index % GROUP,
        seed=source.randrange(2**63),
        policy_version=0,
        reward=reward,
        reward_parts={"correct": reward, "format": source.random()},
        score_status="scored",
        diagnostics={},
        stop_reason="stop" if source.random() < 0.9 else "length",
        advantage=advantage,
        trace=[],
        turns=[turn],
        rows=[row],
    )


def opened(browser: Browser, path: Path, tab: str, ready: str) -> tuple[Page, float]:
    """A new page of the report, and the seconds until `ready` appears."""
    page = browser.new_context().new_page()
    start = time.perf_counter()
    page.goto(f"file://{path}#{tab}")
    page.wait_for_selector(ready)
    return page, time.perf_counter() - start


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds (size: bytes) of each quantity, one value per round."""
    found: dict[str, list[float]] = {}
    path = folder.resolve() / "report.html"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        for _ in range(rounds):
            start, processor = time.perf_counter(), time.process_time()
            report = write_run_report([folder], path)
            found.setdefault("written", []).append(time.perf_counter() - start)
            found.setdefault("written, CPU time", []).append(time.process_time() - processor)
            found.setdefault("size", []).append(report.size)
            page, seconds = opened(browser, path, "curves", "#panel-curves svg path.line")
            page.context.close()
            found.setdefault("curves", []).append(seconds)
            page, seconds = opened(browser, path, "rollouts", "#panel-rollouts[data-ready]")
            found.setdefault("rollouts", []).append(seconds)
            for name, selector, value in FILTERS:
                taken = page.evaluate(SET, [selector, value])
                found.setdefault(f"filter: {name}", []).append(taken / 1000)
                page.click("text=Reset")
            start = time.perf_counter()
            page.click(".row >> nth=3")
            page.wait_for_selector(".panes[data-episode]")
            found.setdefault("an episode", []).append(time.perf_counter() - start)
            page.context.close()
        browser.close()
    return found


def table(found: dict[str, list[float]]) -> str:
    """A row per quantity: median and maximum over the rounds, and the target."""
    lines = ["| | median | largest | target |", "|---|---|---|---|"]
    for name, values in found.items():
        scale, unit = (1e-6, "MB") if name == "size" else (1000, "ms") if max(values) < 0.5 else (1, "s")
        shown = [
            f"{value * scale:.{0 if unit == 'ms' else 2}f} {unit}" for value in (statistics.median(values), max(values))
        ]
        lines.append(f"| {name} | {shown[0]} | {shown[1]} | {TARGETS.get(name.split(':')[0], '')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=500, help="lines of metrics.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_run(run, args.episodes, args.steps)
        print(table(measure(run, args.rounds)))


if __name__ == "__main__":
    main()
