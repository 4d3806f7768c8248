"""Known bugs of episodes and of the rows that are made of them."""

from tests.mutants.mutant import Mutant

EPISODE = "tests/unit/rollout/test_episode.py::"
METRICS = "tests/unit/rollout/test_metrics.py::"
BATCH = "tests/unit/rollout/test_batch.py::"
MINIBATCHES = "tests/unit/training/test_trainer.py::test_pitfall_07_the_rows_of_an_episode_stay_in_one_minibatch"


def bug(pitfall: str, file: str, old: str, new: str, test: str) -> Mutant:
    """A mutant of `file`."""
    return Mutant(pitfall=pitfall, file=file, old=old, new=new, test=test)


MUTANTS = [
    bug(
        "07",
        "rollout/batch.py",
        "turn.prompt_ids[: len(row.ids)] != row.ids",
        "False",
        BATCH + "test_pitfall_07_a_prompt_that_does_not_extend_the_last_turn_starts_a_new_row",
    ),
    bug(
        "07",
        "rollout/batch.py",
        "owners.append((index, number, episode))",
        "owners.append((index, len(rows), episode))",
        BATCH + "test_pitfall_07_a_prompt_that_does_not_extend_the_last_turn_starts_a_new_row",
    ),
    bug(
        "08",
        "rollout/batch.py",
        "potentials=row.potentials + (0.0,) * len(fresh) + (potential,) * len(sampled)",
        "potentials=row.potentials + (potential,) * len(fresh) + (0.0,) * len(sampled)",
        BATCH + "test_pitfall_08_potentials_stand_at_the_sampled_tokens_of_their_turn",
    ),
    bug(
        "05",
        "rollout/batch.py",
        "rows.append(_with_tool_tokens(row) if train_on_tool_tokens else row)",
        "rows.append(_with_tool_tokens(row))",
        BATCH + "test_pitfall_05_tool_tokens_are_trained_on_only_where_that_is_to_be_shown",
    ),
    bug(
        "07",
        "training/trainer.py",
        "order = torch.randperm(len(names), generator=generator)",
        "order, episode_of_row = torch.randperm(len(batch.ids), generator=generator), torch.arange(len(batch.ids))",
        MINIBATCHES,
    ),
    bug(  # a template that looks back at the whole conversation sees what the environment took back
        "07",
        "rollout/episode.py",
        "            conversation = list(reply.messages)\n            prompt_ids = chat.encode_prompt(conversation,",
        "            conversation += reply.messages\n            prompt_ids = chat.encode_prompt(reply.messages,",
        EPISODE + "test_pitfall_07_what_was_said_before_a_restart_is_forgotten",
    ),
    bug(  # potentials of another turn, in silence
        "08",
        "rollout/batch.py",
        "zip(episode.turns, potentials, strict=True)",
        "zip(episode.turns, (*potentials, *potentials), strict=False)",
        BATCH + "test_pitfall_08_an_episode_with_fewer_potentials_than_turns_is_refused_and_one_without_any_has_zeros",
    ),
    bug(  # the length of an episode is that of its last turn
        "14",
        "rollout/metrics.py",
        "sum(len(turn.completion.token_ids) for turn in e.turns) for e",
        "len(e.turns[-1].completion.token_ids) for e",
        METRICS + "test_pitfall_14_all_turns_of_an_episode_count_once",
    ),
    bug(  # so is its entropy
        "14",
        "rollout/metrics.py",
        "for turn in e.turns for p in",
        "for turn in e.turns[-1:] for p in",
        METRICS + "test_pitfall_14_all_turns_of_an_episode_count_once",
    ),
    bug(  # verifiers read what the model wrote as a part of the next prompt
        "28",
        "rollout/episode.py",
        "known = turn.prompt_ids + ids",
        "known = turn.prompt_ids",
        EPISODE
        + "test_pitfall_28_what_a_verifier_reads_of_a_turn_is_what_came_with_it_and_all_of_a_prompt_that_starts_anew",
    ),
    bug(  # an episode that used up its turns has one potential too many, and the batch is refused
        "08",
        "envs/tool_env.py",
        "potentials=tuple(self._potentials[: len(turns)])",
        "potentials=tuple(self._potentials)",
        "tests/unit/envs/test_tool_env.py::test_pitfall_08_potentials_are_those_before_each_turn",
    ),
    bug(  # a verifier's own number of calls is reported as the environment's
        "28",
        "envs/tool_env.py",
        "diagnostics={**score.diagnostics, **counted}",
        "diagnostics={**counted, **score.diagnostics}",
        "tests/unit/envs/test_tool_env.py::test_pitfall_28_what_was_counted_stands_above_what_a_verifier_calls_by_the_same_name",
    ),
    bug(  # where a verifier fails its episode's calls are not counted
        "5",
        "rollout/metrics.py",
        "tool_metrics([e.score.diagnostics for e in episodes], [e.stop_reason for e in episodes])",
        "tool_metrics([e.score.diagnostics for e in judged], [e.stop_reason for e in judged])",
        METRICS + "test_pitfall_05_turns_and_tool_calls_are_counted_over_the_episodes_that_have_tools",
    ),
    bug(  # a thread that was written off works on beside its successor
        "27",
        "envs/threads.py",
        "                    if worker.hangs:  # it has a successor\n                        return\n",
        "",
        "tests/unit/envs/test_threads.py::"
        "test_pitfall_27_a_thread_that_comes_back_too_late_ends_because_it_has_a_successor",
    ),
    bug(  # the tools of an episode that was given up still change what they are handed
        "27",
        "envs/threads.py",
        "                    if not job.future.done():\n",
        "                    if True:\n",
        "tests/unit/envs/test_threads.py::test_pitfall_27_a_call_that_nobody_waits_for_any_more_is_not_made",
    ),
    bug(  # the metric sees the calls of the last turn only
        "28",
        "envs/base.py",
        "calls=tuple(call for turn in turns for call in turn.calls)",
        "calls=last.calls",
        "tests/unit/envs/test_tool_env.py::"
        "test_pitfall_28_verifier_and_metric_see_the_calls_and_tokens_of_all_turns_and_the_text_of_the_last",
    ),
]
