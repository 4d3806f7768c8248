"""Your own rows and reward: a model made from scratch learns to name the larger of two numbers, in seconds."""

import rlvr

rows = [{"question": f"{a} {b} max:", "answer": max(a, b)} for a in range(20) for b in range(20)]


def right(completion, answer):
    return float(completion.strip() == answer)


run = rlvr.train(
    model={"name": "scratch_bpe", "hidden_size": 64, "num_layers": 2, "vocabulary_size": 300},
    data=rows,
    reward=right,
    warm_start={"num_steps": 20, "batch_size": 32, "warmup_steps": 5, "final_phase_steps": 0},
    rollout={"prompts_per_step": 32, "max_completion_tokens": 4},
    trainer={"max_steps": 40, "learning_rate": 2e-3},
)
rewards = [row["reward/mean"] for row in run.metrics[1:]]
print(f"reward {sum(rewards[:5]) / 5:.2f} -> {sum(rewards[-5:]) / 5:.2f}")
found = rlvr.evaluate(run, samples_per_example=4)["jsonl"].metrics
print(f"held-out accuracy {found['eval/jsonl/accuracy']:.2f}, pass@4 {found['eval/jsonl/pass_at_4']:.2f}")
