"""Print docs/pitfalls.md: the pitfalls, and a test that catches each.

python -m tests.pitfalls > docs/pitfalls.md
"""

import textwrap

from tests.pitfalls.table import PLANTED

PITFALLS = {
    1: ("Left padding", "padded rows get other logprobs than the same rows alone"),
    2: ("Packing", "attention leaks from one packed row into the next, or positions run on"),
    3: ("End of sequence", "the sampled end token falls out of the loss mask, or tokens after it fall in"),
    4: ("Template tokens", "prompt, header or template tokens are trained on"),
    5: ("Tool tokens", "masked tokens enter the loss, the KL, the entropy or a denominator"),
    6: ("Token-in, token-out", "decoding a turn and encoding it again gives other ids than were sampled"),
    7: ("Rewritten history", "a template drops earlier text, so a prompt does not extend the last one"),
    8: ("GAE over tool tokens", "returns reset, or values bootstrap, at masked positions"),
    9: ("Loss normalization", "the gradient depends on how the batch is split"),
    10: ("Denominator", "the numerator skips masked rows, the denominator counts them"),
    11: ("Length bias", "long wrong answers weigh less or more than the aggregation mode says"),
    12: ("Group standard deviation", "ddof, epsilon and groups of one"),
    13: ("Zero-variance groups", "rounding noise is divided by a tiny standard deviation"),
    14: ("Truncation", "inferred from the length, then scored as a plain wrong answer"),
    15: ("KL estimators", "wrong sign, or a gradient that is not the KL's"),
    16: ("Overflow", "extreme or missing logprobs become inf or NaN"),
    17: ("Gradient of the whole loss", "any of these in combination"),
    18: ("Bandit sanity", "a loss passes shape tests and does not learn"),
    19: ("Temperature", "the engine samples at T, the trainer scores at 1"),
    20: ("Truncated sampling", "the engine renormalizes over a truncated support, the trainer does not"),
    21: ("Step-0 identity", "with equal weights, ratio and KL are not 1 and 0"),
    22: ("Which old policy", "the ratio is always 1, or clipped on the wrong side"),
    23: ("Sequence-level ratio", "sum and mean over tokens are confused"),
    24: ("Staleness", "tokens are older than the bound allows"),
    25: ("Length selection", "the fastest rollouts, which are the shortest, fill the batch first"),
    26: ("Three states", "an infrastructure error becomes a wrong answer"),
    27: ("Time limits", "a verifier that hangs stalls the run, or outlives it"),
    28: ("Exactness", "signs, commas, units and tricks around the answer"),
    29: ("Reward contract", "NaN, or one value for several completions, is accepted"),
    30: ("Weight sync", "the sampler keeps old weights: other names, a tied head, a restarted server"),
    31: ("Stale cache", "keys and values of old weights are reused after an update"),
    32: ("Merged adapters", "merging in place drifts the base, or adapters are on in the reference"),
    33: ("Precision", "small updates are rounded away"),
    34: ("Train mode", "dropout makes a ratio out of noise"),
    35: ("Expert routing", "trainer and sampler send a token to different experts"),
    36: ("Seeds", "the run seed does not reach the engine, or group members share a stream"),
    37: ("Resume", "data cursor, optimizer, random state or counters are lost"),
    38: ("Evaluation", "the reward is the metric, train and test overlap, no interval"),
}
HEAD = """\
# What breaks RLVR code without a crash

Each row is a bug that other projects had without noticing. `pytest -m pitfalls` plants one to three bugs of each kind
(`tests/pitfalls/`), one at a time, and checks that a test fails; the last column names one of these tests.

| | pitfall | what goes wrong | caught by |
|---|---|---|---|
"""


def document() -> str:
    """The page."""
    tests = {bug.pitfall: bug.caught_by for bug in reversed(PLANTED)}
    return HEAD + "".join(
        f"| {number} | {name} | {what} | {link(tests[number])} |\n" for number, (name, what) in PITFALLS.items()
    )


def link(test: str) -> str:
    """`tests/unit/x.py::test_pitfall_01_some_words` -> `[some words](../tests/unit/x.py)`."""
    file, _, name = test.partition("::")
    words = name.split("[")[0].removeprefix("test_pitfall_")[3:].replace("_", " ")
    return f"[{textwrap.shorten(words, 60, placeholder=' ...')}](../{file})"


if __name__ == "__main__":
    print(document(), end="")
