"""Bugs of jobs of several processes: their checkpoints, their evaluation, their end."""

from tests.mutants.mutant import Mutant

SHARDS = "tests/unit/training/test_shards.py::"
ANY_NUMBER = SHARDS + "test_pitfall_37_what_some_ranks_saved_any_number_goes_on_from"
KILLED = SHARDS + "test_pitfall_37_a_rank_killed_while_saving_leaves_whole_checkpoints_or_none"
ORDER = "tests/unit/training/test_state.py::test_pitfall_37_moments_find_their_parameters_by_name"
PLAYED = (
    "tests/unit/evaluation/test_evaluate.py::test_pitfall_38_what_ranks_play_of_an_evaluation_gives_the_numbers_of_one"
)
STOPPED = "tests/unit/app/test_ranks.py::test_pitfall_37_all_stop_when_one_was_asked_to"

MUTANTS = [
    Mutant(  # every rank goes on with the moments of the first one's rows
        pitfall="37",
        file="training/state.py",
        old="first, end = row_range(parameter)",
        new="first, end = 0, row_range(parameter)[1] - row_range(parameter)[0]",
        test=ANY_NUMBER,
    ),
    Mutant(  # the moments of cut weights are not saved
        pitfall="37",
        file="training/state.py",
        old="sharded={name: tensor for name, tensor in tensors.items() if is_sharded(tensor)},",
        new="sharded={n: t for n, t in tensors.items() if is_sharded(t) and n.startswith(WEIGHTS)},",
        test=ANY_NUMBER + "[fsdp22-single1]",
    ),
    Mutant(  # rows are looked for behind their file's first row
        pitfall="37",
        file="training/shards.py",
        old="max(first, start) - start, min(end, stop) - start)",
        new="max(first, start), min(end, stop))",
        test=SHARDS + "test_pitfall_37_any_rows_of_a_tensor_come_from_the_files_that_hold_them",
    ),
    Mutant(  # moments by number, whatever order their parameters have now
        pitfall="37",
        file="training/state.py",
        old="state = {own[order[number]]: of_parameter for number, of_parameter in moments.items()}",
        new="state = {number: of_parameter for number, of_parameter in moments.items()}",
        test=ORDER,
    ),
    Mutant(  # the checkpoint has its name before the ranks have written
        pitfall="37",
        file="training/checkpoint.py",
        old="temporary = Path(world.first(str(temporary_folder(final))))",
        new='temporary = Path(world.first(str(final.with_name(f"{final.name}0"))))',
        test=KILLED,
    ),
    Mutant(  # a rank's file is taken for whole without a look
        pitfall="37",
        file="training/checkpoint.py",
        old="problems = world.join([_file_problem(path / name, entry) for name, entry in shares])",
        new="problems = world.join([None if SHARDS in name else _file_problem(path / name, e) for name, e in shares])",
        test=SHARDS + "test_pitfall_37_damage_is_named_by_all_ranks",
    ),
    Mutant(  # the first rank tidies up while another one writes, whose complaint is then the reason
        pitfall="37",
        file="training/checkpoint.py",
        old="written = world.attempt(write)",
        new="written = world.gather(write())",
        test=SHARDS + "test_pitfall_37_a_disk_that_is_full_on_one_rank_is_the_reason_on_all[1]",
    ),
    Mutant(  # rows are left to the memory of their machine, where the first rank's cannot push them from
        pitfall="37",
        file="training/checkpoint.py",
        old="            sync_file(own)  #",
        new="            #",
        test=SHARDS + "test_pitfall_37_each_rank_pushes_its_own_rows_to_the_disk",
    ),
    Mutant(  # a run goes on in the precision that the new machine likes
        pitfall="37",
        file="training/state.py",
        old='        self._trainer.bf16 = checkpoint.state["bf16"]\n',
        new="",
        test="tests/unit/training/test_state.py::test_pitfall_37_a_run_goes_on_in_the_precision_that_it_was_begun_in",
    ),
    Mutant(  # all ranks delete the same folders
        pitfall="37",
        file="training/state.py",
        old="        if self._world.is_first:\n            keep =",
        new="        if True:\n            keep =",
        test=SHARDS + "test_pitfall_37_only_the_first_rank_deletes_checkpoints_and_syncs_metrics",
    ),
    Mutant(  # one process stops, the others wait for it
        pitfall="37",
        file="build/ranks.py",
        old="stopping = world.any(stopped())",
        new="stopping = stopped()",
        test=STOPPED,
    ),
    Mutant(  # every rank plays the whole evaluation
        pitfall="38",
        file="evaluation/evaluate.py",
        old="world.share(examples),",
        new="examples,",
        test=PLAYED,
    ),
    Mutant(  # each rank tells the accuracy of its share
        pitfall="38",
        file="evaluation/evaluate.py",
        old="records = tuple(chain.from_iterable(world.join(_by_example(records))))",
        new="records = tuple(chain.from_iterable(_by_example(records)))",
        test=PLAYED,
    ),
    Mutant(  # episodes are joined one by one, as if each example had one
        pitfall="38",
        file="evaluation/evaluate.py",
        old="records = tuple(chain.from_iterable(world.join(_by_example(records))))",
        new="records = tuple(chain.from_iterable(world.join([(record,) for record in records])))",
        test=PLAYED,
    ),
]
