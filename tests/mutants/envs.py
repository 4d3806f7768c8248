"""Bugs of tools, their environments, and episodes of several turns."""

from tests.mutants.mutant import Mutant

EPISODES = "tests/unit/rollout/test_tool_episodes.py::"
FAILURES = "tests/unit/rollout/test_tool_failures.py::"
TOOLS = "tests/unit/envs/test_tools.py::"
THREADS = "tests/unit/envs/test_threads.py::"
ENV = "tests/unit/envs/test_tool_env.py::"
EXACT = EPISODES + "test_pitfall_06_ids_trained_on_are_ids_sampled_over_random_turns_with_tools"
HIDDEN = EPISODES + "test_pitfall_05_what_tools_return_is_in_the_row_and_not_in_the_mask"
APART = EPISODES + "test_pitfall_38_a_thousand_episodes_at_once_never_see_each_others_documents"
GOES_ON = FAILURES + "test_pitfall_27_a_batch_goes_on_whatever_a_tool_or_the_engine_does_and_nothing_is_left_behind"
KEEPS = EPISODES + "test_pitfall_31_the_engine_keeps_an_episodes_keys_and_values_across_turns"

MUTANTS = [
    Mutant(  # what tools return is trained on
        pitfall="5",
        file="rollout/batch.py",
        old="loss_mask=row.loss_mask + (False,) * len(fresh)",
        new="loss_mask=row.loss_mask + (bool(row.ids),) * len(fresh)",
        test=HIDDEN,
    ),
    Mutant(  # the same, seen by the property over random episodes
        pitfall="6",
        file="rollout/batch.py",
        old="loss_mask=row.loss_mask + (False,) * len(fresh)",
        new="loss_mask=row.loss_mask + (bool(row.ids),) * len(fresh)",
        test=EXACT,
    ),
    Mutant(  # a completion is decoded and encoded again
        pitfall="6",
        file="chat/rendering.py",
        old="return prompt_ids + completion_ids + self.encode_reply(",
        new="return prompt_ids + self._encode(self.decode(completion_ids)) + self.encode_reply(",
        test=EXACT,
    ),
    Mutant(  # the record has other ids than the engine sampled
        pitfall="6",
        file="rollout/episode.py",
        old="        turns.append(Turn(prompt_ids=prompt_ids, completion=completion))",
        new="        again = chat._encode(chat.decode(completion.token_ids))\n"
        "        same = len(again) == len(completion.token_ids)\n"
        "        shorter = replace(completion, token_ids=completion.token_ids[-1:])\n"
        "        turns.append(Turn(prompt_ids=prompt_ids, completion=completion if same else shorter))",
        test=EXACT,
    ),
    Mutant(  # every prompt is rendered anew
        pitfall="6",
        file="chat/rendering.py",
        old="if self._history and self._history.rewritten(conversation, reply, tools):",
        new="if self._history:",
        test=EXACT,
    ),
    Mutant(  # a malformed call makes the template seem to take something back
        pitfall="6",
        file="chat/history.py",
        old=" for call in said.tool_calls if call.problem is None]",
        new=" for call in said.tool_calls]",
        test=EXACT,
    ),
    Mutant(  # all episodes share the first one's state
        pitfall="38",
        file="envs/tools.py",
        old="    def called(arguments: dict[str, Any], state: object) -> Any:\n",
        new="    shared: list[object] = []\n\n"
        "    def called(arguments: dict[str, Any], state: object) -> Any:\n"
        "        state = (shared or shared.append(state) or shared)[0]\n",
        test=APART,
    ),
    Mutant(  # a call in a thread finds the state of the call that was made last
        pitfall="38",
        file="envs/tools.py",
        old="        return await pool.run(name, lambda: _text(called(arguments, state), max_chars), timeout_s)",
        new="        pool.last = state\n"
        "        return await pool.run(name, lambda: _text(called(arguments, pool.last), max_chars), timeout_s)",
        test=APART,
    ),
    Mutant(  # one session for all: the engine goes on from another episode's keys and values
        pitfall="6",
        file="rollout/episode.py",
        old="session = None if limits.max_turns == 1 else object()",
        new='session = None if limits.max_turns == 1 else "episode"',
        test=EXACT,
    ),
    Mutant(  # no session: every turn is prefilled from its start
        pitfall="31",
        file="rollout/episode.py",
        old="completion = await engine.generate(prompt_ids, params, session=session)",
        new="completion = await engine.generate(prompt_ids, params, session=None)",
        test=KEEPS,
    ),
    Mutant(  # sessions of episodes that end early are kept
        pitfall="27",
        file="rollout/episode.py",
        old="            engine.release(session)  # before",
        new="            pass  # before",
        test=GOES_ON,
    ),
    Mutant(  # a tool that fails looks like one that succeeds
        pitfall="26",
        file="envs/tools.py",
        old='            return ToolResult(text=_told(error), failure="error")\n        except asyncio',
        new="            return ToolResult(text=_told(error))\n        except asyncio",
        test=TOOLS + "test_pitfall_26_what_a_tool_raises_is_said_in_few_words",
    ),
    Mutant(  # failures are said, and not counted
        pitfall="26",
        file="envs/tool_env.py",
        old='        self._counts["tool_errors"] += 1\n',
        new="",
        test=ENV + "test_pitfall_26_every_kind_of_failure_is_counted_by_itself_and_as_an_error",
    ),
    Mutant(  # what no model can mend becomes a message to the model
        pitfall="26",
        file="envs/tools.py",
        old="        except UserError:\n            raise\n        except ToolError",
        new="        except ToolError",
        test=ENV + "test_pitfall_26_what_the_model_cannot_mend_ends_the_run",
    ),
    Mutant(  # the model's time limit is nobody's
        pitfall="27",
        file="envs/threads.py",
        old="            job.future.set_result((None, TimeIsUpError()))",
        new="            pass",
        test=THREADS + "test_pitfall_27_a_tool_that_hangs_is_given_up_and_the_event_loop_goes_on_meanwhile",
    ),
    Mutant(  # nor that of asynchronous tools
        pitfall="27",
        file="envs/tools.py",
        old="        await asyncio.wait({task}, timeout=timeout_s)\n",
        new="        await asyncio.wait({task})\n",
        test=THREADS + "test_pitfall_27_an_asynchronous_tool_that_refuses_to_be_cancelled_is_not_waited_for",
    ),
    Mutant(  # a thread that hangs has no successor: what waits behind it waits for ever
        pitfall="27",
        file="envs/threads.py",
        old="            worker.hangs = deadline is not None and deadline <= now",
        new="            worker.hangs = False",
        test=THREADS + "test_pitfall_27_too_many_threads_that_hang_are_one_sentence_and_not_a_full_machine",
    ),
    Mutant(  # waiting for a thread counts as hanging
        pitfall="27",
        file="envs/threads.py",
        old="        if job.deadline is not None and job.deadline <= now:",
        new="        if True:",
        test=THREADS + "test_pitfall_27_waiting_for_a_thread_does_not_count_towards_the_time_limit",
    ),
    Mutant(  # threads that hang keep the program from ending
        pitfall="27",
        file="envs/threads.py",
        old='name="rlvr-tool", daemon=True',
        new='name="rlvr-tool", daemon=False',
        test=THREADS + "test_pitfall_27_a_program_ends_although_a_tool_hangs",
    ),
    Mutant(  # synchronous tools block the event loop
        pitfall="27",
        file="envs/tools.py",
        old="    if inline:\n        return directly\n",
        new="    if True:\n        return directly\n",
        test=EPISODES + "test_pitfall_27_the_episodes_of_a_batch_never_wait_for_one_with_a_slow_tool[thread]",
    ),
    Mutant(  # a cancelled episode leaves its tool running
        pitfall="27",
        file="envs/tools.py",
        old="            task.cancel()\n",
        new="",
        test=FAILURES + "test_pitfall_27_giving_a_batch_up_ends_its_tools_and_sessions",
    ),
    Mutant(  # types are guessed: "3" for 3
        pitfall="28",
        file="envs/tools.py",
        old='ConfigDict(strict=True, extra="forbid")',
        new='ConfigDict(extra="forbid")',
        test=TOOLS + "test_pitfall_28_wrong_arguments_are_named_to_the_model_and_nothing_is_called",
    ),
    Mutant(  # arguments that no tool has are dropped in silence
        pitfall="28",
        file="envs/tools.py",
        old='ConfigDict(strict=True, extra="forbid")',
        new='ConfigDict(strict=True, extra="ignore")',
        test=TOOLS + "test_pitfall_28_wrong_arguments_are_named_to_the_model_and_nothing_is_called",
    ),
    Mutant(  # the model sets the state
        pitfall="38",
        file="envs/tools.py",
        old="    takes_state = parameters.pop(_STATE, None) is not None\n",
        new="    takes_state = False\n",
        test=TOOLS + "test_pitfall_38_the_schema_is_made_of_types_and_docstring_and_the_state_is_no_part_of_it",
    ),
    Mutant(  # 10 MB get into the prompt
        pitfall="27",
        file="envs/tools.py",
        old="    return _bounded(text, max_chars)\n",
        new="    return text\n",
        test=TOOLS + "test_pitfall_27_ten_megabytes_are_cut_with_a_remark",
    ),
    Mutant(  # a call of an unknown tool is taken for the answer
        pitfall="28",
        file="envs/tool_env.py",
        old='            return self._failed("unknown_tools", self._no_such_tool(call.name)), False',
        new='            return self._failed("unknown_tools", self._no_such_tool(call.name)), True',
        test=ENV + "test_pitfall_28_an_unknown_tool_is_a_message_with_the_nearest_name_and_all_of_them",
    ),
    Mutant(  # a call that is none ends the episode
        pitfall="28",
        file="envs/tool_env.py",
        old='            return self._failed("malformed_calls", call.problem), False',
        new='            return self._failed("malformed_calls", call.problem), True',
        test=ENV + "test_pitfall_28_a_call_that_is_none_is_told_so",
    ),
    Mutant(  # tools run in a turn after which nothing can be read
        pitfall="28",
        file="envs/tool_env.py",
        old="        if is_last and not tool.final:\n",
        new="        if False:\n",
        test=ENV + "test_pitfall_28_in_the_last_turn_only_final_tools_run",
    ),
    Mutant(  # a final call that fails ends the episode all the same
        pitfall="28",
        file="envs/tool_env.py",
        old='            return self._failed(_FAILURES.get(result.failure), f"{tool.name}: {result.text}"), False',
        new='            return self._failed(_FAILURES.get(result.failure), f"{tool.name}: {result.text}"), tool.final',
        test=ENV + "test_pitfall_28_a_final_call_that_fails_does_not_end_the_episode",
    ),
    Mutant(  # an episode may be opened twice
        pitfall="38",
        file="envs/tool_env.py",
        old="        self._started = True\n",
        new="",
        test=ENV + "test_pitfall_38_an_env_is_single_use",
    ),
    Mutant(  # the potential after a turn stands before it
        pitfall="8",
        file="envs/tool_env.py",
        old="        self._started = True\n        self._note_potential()\n",
        new="        self._started = True\n",
        test=ENV + "test_pitfall_08_potentials_are_those_before_each_turn",
    ),
    Mutant(  # prompts of other tools are taken from memory
        pitfall="38",
        file="chat/rendering.py",
        old="key = (*messages, *map(id, tools))",
        new="key = (*messages, len(tools))",
        test="tests/unit/chat/test_coding.py::test_pitfall_38_prompts_that_are_remembered_are_not_mixed_up",
    ),
]
