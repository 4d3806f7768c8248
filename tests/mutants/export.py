"""Bugs of exported models."""

from tests.mutants.mutant import Mutant

EXPORT = "tests/system/test_export.py"
CARD = "tests/unit/app/test_model_card.py"

MUTANTS = [
    Mutant(  # the card of a checkpoint boasts with the scores of the end
        pitfall="38",
        file="build/export.py",
        old="after=rows.get(source.step, {}),",
        new="after=rows[max(rows)],",
        test=f"{EXPORT}::test_pitfall_38_a_checkpoint_has_the_scores_of_its_own_step",
    ),
    Mutant(  # or with the last ones that there are
        pitfall="38",
        file="build/export.py",
        old="after=rows.get(source.step, {}),",
        new="after=[row for step, row in rows.items() if step <= source.step and 'eval/rpn/accuracy' in row][-1],",
        test=f"{EXPORT}::test_pitfall_38_a_checkpoint_has_the_scores_of_its_own_step",
    ),
    Mutant(  # a checkpoint's folder stands for the final model
        pitfall="38",
        file="build/export.py",
        old='return Source(root=root, weights=path / "model", step=verify(path), is_final=False)',
        new="return Source(root=root, weights=folder.final, step=verify(path), is_final=False)",
        test=f"{EXPORT}::test_pitfall_38_a_checkpoint_has_the_scores_of_its_own_step",
    ),
    Mutant(  # numbers without interval are scores, too
        pitfall="38",
        file="build/model_card.py",
        old='if match is None or f"{name}_low" not in metrics or f"{name}_high" not in metrics:',
        new='if match is None or name.endswith(("_low", "_high")):',
        test=f"{CARD}::test_pitfall_38_scores_stand_with_interval_and_number_of_examples",
    ),
    Mutant(  # the base is cast before the sum
        pitfall="32",
        file="models/export.py",
        old="        policy = policy.merged()\n",
        new="        policy.model.to(getattr(torch, dtype))\n        policy = policy.merged()\n",
        test=f"{EXPORT}::test_pitfall_32_the_sum_is_cast_and_not_its_parts",
    ),
    Mutant(  # the base is taken from the settings' file in full precision, not as it was in training
        pitfall="32",
        file="models/export.py",
        old="load_for_inference(str(source), settings)",
        new="load_for_inference(str(source))",
        test=f"{EXPORT}::test_pitfall_32_merged_is_base_plus_adapter_and_the_base_is_untouched",
    ),
]
