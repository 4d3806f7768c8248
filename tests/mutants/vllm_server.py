"""Bugs in how vLLM is started."""

from tests.mutants.mutant import Mutant

FILE = "build/vllm_server.py"
TESTS = "tests/unit/app/test_vllm_server.py::"

MUTANTS = [
    Mutant(
        pitfall="19",
        file=FILE,
        old='("--logprobs-mode", "processed_logprobs"),',
        new='("--logprobs-mode", "raw_logprobs"),',
        test=f"{TESTS}test_pitfall_19_logprobs_are_those_of_the_distribution_that_is_sampled_from",
    ),
    Mutant(
        pitfall="19",
        file=FILE,
        old='    "--logprobs-mode": _FIXED,\n',
        new="",
        test=f"{TESTS}test_pitfall_19_logprobs_are_those_of_the_distribution_that_is_sampled_from",
    ),
    Mutant(
        pitfall="33",
        file=FILE,
        old='options += ["--dtype", "float32"]',
        new='options += ["--dtype", "auto"]',
        test=f"{TESTS}test_pitfall_33_on_a_cpu_numbers_are_float32_and_nothing_is_compiled_unless_asked",
    ),
    Mutant(
        pitfall="30",
        file=FILE,
        old="if size not in build.head_sizes:",
        new="if size < min(build.head_sizes) - 16:",
        test=f"{TESTS}test_pitfall_30_a_head_size_that_attention_cannot_do_is_refused_before_the_start",
    ),
]
