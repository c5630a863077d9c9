"""Mutants of ThunderFX: what Thunder does with the graphs that TorchDynamo gives it."""

from __future__ import annotations

from harness.mutants.base import THUNDERFX, Mutant

_UTILS = "thunder.dynamo.utils"

MUTANTS = (
    Mutant(
        name="thunderfx-checkpoint-drops-options",
        title="operations of a checkpointed region are translated without their keyword arguments",
        target=f"{_UTILS}:_checkpoint_function_converter",
        changes=(("kwargs=n.kwargs", "kwargs={}"),),
        pairs=(THUNDERFX,),
        symptom="another GELU, another concatenation inside checkpointed regions",
    ),
    Mutant(
        name="thunderfx-autocast-removed",
        title="the pass that removes empty autocast regions removes the others too",
        target=f"{_UTILS}:remove_empty_autocast",
        changes=(
            (
                "        prev_node = node\n",
                "        if node.target == torch.amp.autocast_mode._enter_autocast:\n            prev_node = node\n",
            ),
        ),
        pairs=(THUNDERFX,),
        symptom="torch.autocast inside the model has no effect",
    ),
    Mutant(
        name="thunderfx-outputs-without-grad",
        title="outputs of a graph do not require grad",
        target="thunder.dynamo.splitter:_splitter",
        changes=(("is_differentiable_outputs.append(True)", "is_differentiable_outputs.append(False)"),),
        pairs=(THUNDERFX,),
        symptom="backward raises, or reaches no parameter",
    ),
)
