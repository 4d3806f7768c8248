"""The benchmark of one GPU, tried on a CPU: without a GPU at hand nobody would notice that it does not run."""

import subprocess
import sys
from pathlib import Path

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


def gpu_step(*words: str) -> str:
    command = [sys.executable, "-c", WITHOUT, *words, "--trl-python", "none"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_small_step_is_measured_from_end_to_end():
    lines = gpu_step("--small", "--steps", "1").splitlines()
    assert any(": 2 prompts of 8 tokens x 2 x 16 tokens, " in line for line in lines)
    for name, unit in (("generation", "GB/s"), ("training", "TFLOP/s"), ("step", "")):
        (line,) = [line for line in lines if line.startswith(f"| {name} |")]
        _, _, seconds, tokens, share, _ = line.split("|")
        assert float(seconds) > 0
        assert int(tokens.replace(",", "")) > 0
        assert unit in share
    assert any(line.startswith("peak memory: ") and "planned: " in line for line in lines)
    assert lines[-1].startswith("no TRL: ")
