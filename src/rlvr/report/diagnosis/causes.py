"""The chain of causes; causes.toml has their words and levels.

A judge combines what it needs by a product: all of it must hold.
"""

from rlvr.report.diagnosis import data, rewards, sampling, tools, updates
from rlvr.report.diagnosis.judge import Judge

CHAIN: dict[str, Judge] = {
    judge.__name__: judge
    for judge in (
        data.untrained,
        data.evaluation_stands_still,
        sampling.verifier_fails,
        sampling.same_prompt,
        sampling.learnt_by_heart,
        sampling.ends_early,
        tools.tools_fail,
        data.other_gold,
        sampling.other_sampler,
        sampling.alike,
        sampling.collapsed,
        sampling.too_hot,
        sampling.never_ends,
        sampling.truncated,
        rewards.never_paid,
        rewards.always_paid,
        rewards.paid_by_question,
        rewards.paid_for_length,
        rewards.noisy_reward,
        rewards.other_reward,
        updates.masked,
        updates.no_gradient,
        updates.stale_sampler,
        updates.wrong_way,
        updates.step_too_large,
        updates.collapses,
        updates.frozen,
        updates.step_too_small,
        updates.held_back,
        updates.unusual_setting,
        data.unlike_held_out,
        sampling.foreign_prompt,
        rewards.too_hard,
        rewards.too_easy,
    )
}
