"""Bugs of adapters, quantized weights and recomputed layers."""

from tests.mutants.mutant import Mutant

ADAPTERS = "tests/unit/models/test_adapters.py::test_pitfall_32_"
BASE = ADAPTERS + "only_adapters_move_and_the_base_stays_bit_identical"
ENGINE = ADAPTERS + "the_engine_samples_with_the_adapters"
REFERENCE = ADAPTERS + "the_reference_is_the_model_without_adapters"
STATE = "tests/unit/training/test_state.py::test_pitfall_37_"

MUTANTS = [
    Mutant(  # each reference pass merges the adapters into the base and takes them out again, in bf16
        pitfall="32",
        file="models/adapters.py",
        old="    model.disable_adapters()\n",
        new='    for layer in model.modules():\n        if hasattr(layer, "get_delta_weight"):\n'
        "            layer.merge()\n            layer.unmerge()\n    model.disable_adapters()\n",
        test=BASE + "[bfloat16]",
    ),
    Mutant(  # the base is trained, too
        pitfall="32",
        file="models/adapters.py",
        old="    model.eval()  # peft's new modules are in training mode\n",
        new="    model.eval().get_input_embeddings().requires_grad_(True)\n",
        test=BASE + "[float32]",
    ),
    Mutant(  # final is merged into the policy's own weights
        pitfall="32",
        file="models/policy.py",
        old="        merged = self.adapters.fresh_base()\n        copy_adapters(self.model, merged)\n",
        new="        merged = self.model\n",
        test=BASE + "[float32]",
    ),
    Mutant(  # the engine samples from the model without its adapters
        pitfall="32",
        file="engines/local/engine.py",
        old="without_flash_attention(self._model):\n                yield\n",
        new="without_flash_attention(self._model):\n                self._model.disable_adapters()\n"
        "                yield\n                self._model.enable_adapters()\n",
        test=ENGINE + "[float32]",
    ),
    Mutant(  # the reference is the policy
        pitfall="32",
        file="models/adapters.py",
        old="    model.disable_adapters()\n",
        new="",
        test=REFERENCE + "[float32]",
    ),
    Mutant(  # the adapters stay off after the reference was asked
        pitfall="32",
        file="models/adapters.py",
        old="        model.enable_adapters()\n",
        new="        pass\n",
        test=REFERENCE + "[float32]",
    ),
    Mutant(  # a policy that goes on with an adapter is held to the model without it
        pitfall="32",
        file="models/policy.py",
        old="        if are_untrained(self.model):\n",
        new="        if True:\n",
        test=ADAPTERS + "the_reference_of_a_trained_adapter_is_that_adapter",
    ),
    Mutant(  # the template's end of turn does not end a completion
        pitfall="3",
        file="chat/rendering.py",
        old=" | self._turn_ends())",
        new=")",
        test="tests/unit/chat/test_rendering.py::"
        "test_pitfall_03_the_end_of_turn_of_the_template_stops_where_no_config_names_it",
    ),
    Mutant(  # a resumed run keeps the untrained adapters
        pitfall="37",
        file="models/policy.py",
        old="            load_adapters(self.model, folder)\n            return\n",
        new="            return\n",
        test=STATE + "a_checkpoint_of_adapters_holds_them_alone_and_goes_on_bit_for_bit[4bit]",
    ),
]
