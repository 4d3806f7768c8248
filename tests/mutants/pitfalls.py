"""What breaks RLVR code in silence, and the tests that catch it: docs/pitfalls.md.

    python -m tests.mutants.pitfalls > docs/pitfalls.md

A test compares the page with what this prints.
"""

from tests.mutants.__main__ import load

PITFALLS = {
    1: ("Left padding", "padded rows get other logprobs than the same rows alone"),
    2: ("Packing", "attention leaks from one packed segment into the next, or positions run on"),
    3: ("End of sequence", "the sampled end token falls out of the loss mask, or tokens after it fall in"),
    4: ("Template tokens", "prompt, header or template tokens are trained on"),
    5: ("Tool tokens", "masked tokens enter a loss term, the KL, the entropy or a denominator"),
    6: ("Token-in, token-out", "decoding a turn and encoding it again yields other ids than were sampled"),
    7: ("Rewritten history", "a template that drops earlier text breaks the row it was trained on"),
    8: ("GAE over tool tokens", "returns reset, or values bootstrap, at masked positions"),
    9: ("Loss normalization", "the gradient depends on how the batch was cut"),
    10: ("Denominator", "the numerator skips masked rows, the denominator counts them"),
    11: ("Length bias", "aggregation modes weigh long wrong answers differently from what they say"),
    12: ("Group standard deviation", "ddof, epsilon and groups of one"),
    13: ("Zero-variance groups", "rounding noise divided by a tiny standard deviation"),
    14: ("Truncation", "told by the length, and scored as an ordinary wrong answer"),
    15: ("KL estimators", "wrong sign, or an estimator whose gradient is not what it seems"),
    16: ("Overflow", "extreme or missing logprobs become inf or NaN"),
    17: ("Gradient of the whole loss", "any of these in combination"),
    18: ("Bandit sanity", "a loss that passes shape tests and does not learn"),
    19: ("Temperature", "the engine samples at T, the trainer scores at 1"),
    20: ("Truncated sampling", "the engine renormalizes over a truncated support, the trainer does not"),
    21: ("Step-0 identity", "with equal weights everything should cancel"),
    22: ("Which old policy", "the ratio is always 1, or clipped on the wrong side"),
    23: ("Sequence-level ratio", "sum and mean over tokens confused"),
    24: ("Staleness", "tokens of older weights than the bound allows are trained on, or pass for newer ones"),
    25: ("Length selection", "the fastest rollouts, which are the shortest, fill the batch first"),
    26: ("Three states", "an infrastructure error becomes a wrong answer"),
    27: ("Time limits", "one verifier that hangs, forks or eats memory stalls the run, or outlives it"),
    28: ("Exactness", "signs, commas, units and tricks around the answer"),
    29: ("Reward contract", "NaN, or one value for several completions, passes through"),
    30: ("Weight sync", "tensors do not reach the sampler: other names, a tied head, a server that was started anew"),
    31: ("Stale cache", "keys and values of old weights are reused after an update"),
    32: ("Merged adapters", "merging in place drifts the base, or adapters are not on where they should be"),
    33: ("Precision", "small updates are rounded away"),
    34: ("Train mode", "dropout makes a ratio out of noise"),
    35: ("Expert routing", "trainer and sampler send a token to different experts"),
    36: ("Seeds", "the run seed does not reach the engine, or group members share a stream"),
    37: ("Resume", "cursor, optimizer, random state or counters are lost"),
    38: ("Evaluation", "reward used as the metric, train and test overlap, no interval"),
}
"""The items that this version can meet, numbered as in the project's checklist of 38."""


def document() -> str:
    """The page: one row a pitfall, with the tests that fail when its bug is planted."""
    tests: dict[int, list[str]] = {}
    for mutant in load([]):
        names = tests.setdefault(int(mutant.pitfall), [])
        if mutant.test not in names:
            names.append(mutant.test)
    lines = [
        "# What breaks RLVR code in silence",
        "",
        "Each row is a bug that other projects had without noticing. `python -m tests.mutants` plants every one in a",
        "copy of the tree (`tests/mutants/` has the exact change) and demands that the test named here fails.",
        "",
        "| | pitfall | what goes wrong | caught by |",
        "|---|---|---|---|",
    ]
    for number, (name, what) in PITFALLS.items():
        shown = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in sorted(tests.get(number, [])))
        lines.append(f"| {number} | {name} | {what} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
