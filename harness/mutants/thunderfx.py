"""Mutants of ThunderFX: what Thunder does with the graphs that TorchDynamo gives it."""

from __future__ import annotations

from harness.mutants.base import THUNDERFX, Mutant

_UTILS = "thunder.dynamo.utils"

MUTANTS = (
    Mutant(
        name="thunderfx-checkpoint-drops-texts",
        title="operations of a checkpointed region are translated without their textual options",
        target=f"{_UTILS}:_checkpoint_function_converter",
        changes=(
            ("kwargs=n.kwargs", "kwargs={key: value for key, value in n.kwargs.items() if not isinstance(value, str)}"),
        ),
        pairs=(THUNDERFX,),
        symptom="another GELU inside checkpointed regions",
    ),
    Mutant(
        name="thunderfx-without-builtins",
        title="operators of Python, such as +, count as unknown to Thunder",
        target=f"{_UTILS}:is_node_supported_by_thunder",
        changes=(
            (
                "if target in _torch_to_thunder_function_map or inspect.isbuiltin(target):",
                "if target in _torch_to_thunder_function_map:",
            ),
        ),
        pairs=(THUNDERFX,),
        symptom="several graphs for one, the rest in Inductor",
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
