"""The benchmark of one GPU, tried on a CPU: without a GPU at hand nobody would notice that it does not run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WITHOUT = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hydra", "omegaconf", "peft", "datasets", "bm25s", "math_verify", "trl"):
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
sys.argv = ["gpu_step.py", *sys.argv[1:]]
runpy.run_path("benchmarks/gpu_step.py", run_name="__main__")
"""
"""As on a machine that has torch and transformers, and not what the rest of the product needs."""


TRL = """#!/bin/sh
[ "$1" = -c ] && exit 0
cat > "$(dirname "$0")/asked.json"
echo '{"version": "1.16.0", "step": 1e6, "generation": 8e5, "training": 2e5, "memory": 3000000000}'
"""
"""Answers as the Python of TRL's environment does."""


@pytest.mark.long
def test_a_small_step_is_measured_from_end_to_end(tmp_path):
    trl = tmp_path / "python"
    trl.write_text(TRL)
    trl.chmod(0o755)
    command = [sys.executable, "-c", WITHOUT, "--small", "--steps", "1", "--trl-python", str(trl)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=settings)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert any(": 2 prompts of 8 tokens x 2 x 16 tokens, " in line for line in lines)
    rows = {cells[1].strip(): cells[2:-1] for line in lines if line.startswith("| ") for cells in [line.split("|")]}
    for name, unit in (("generation", "GB/s"), ("training", "TFLOP/s"), ("step", "")):
        seconds, tokens, share, theirs, ratio = rows[name]
        assert float(seconds) > 0
        assert int(tokens.replace(",", "")) > 0
        assert unit in share
        assert float(ratio) == pytest.approx(float(theirs) / float(seconds), rel=0.01, abs=0.1)
    assert "planned: " in rows["peak memory"][2]
    assert rows["peak memory"][3].strip() == "3.0 GB"
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert (len(asked["prompts"]), asked["group_size"], asked["completion_tokens"], asked["micro"]) == (2, 2, 16, 4)
    assert all(len(prompt) == 8 for prompt in asked["prompts"])
