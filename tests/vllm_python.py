"""Whether there is a vLLM for tests: in an environment of its own, whose Python RLVR_VLLM_PYTHON names."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

VARIABLE = "RLVR_VLLM_PYTHON"
LAUNCHER = Path(__file__).resolve().parents[1] / "src/rlvr/engines/vllm/extension/rlvr_vllm_launch.py"


@cache
def missing_vllm() -> str | None:
    """What is missing, or None."""
    python = os.environ.get(VARIABLE)
    if not python:
        return f"{VARIABLE} is not set"
    try:
        done = subprocess.run([python, str(LAUNCHER), "probe"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{VARIABLE}={python} cannot be run ({type(error).__name__})"
    return None if json.loads(done.stdout)["version"] else f"{VARIABLE}={python} has no vLLM"
