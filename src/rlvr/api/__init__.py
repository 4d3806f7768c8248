"""The commands as functions, with the same configurations and run folders.

run = rlvr.train(model="Qwen/Qwen2.5-0.5B-Instruct", data=[{"question": "1 + 1?", "answer": "2"}, ...], reward=fn)
run.metrics[-1]["eval/jsonl/accuracy"]
run.rollouts()[0].turns[0].completion
rlvr.evaluate(run, samples_per_example=4)["jsonl"].metrics["eval/jsonl/pass_at_4"]
"""

from rlvr.api.commands import Run, audit, doctor, evaluate, plan, replay, train

__all__ = ["Run", "audit", "doctor", "evaluate", "plan", "replay", "train"]
