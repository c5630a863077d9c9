"""Programs with a ``te.ops.Sequential`` whose parameters are hidden, compared with one whose parameters are not."""

from __future__ import annotations

import inspect
from collections.abc import Collection

import transformer_engine.pytorch as te

from harness.build import frozen_parameters
from harness.case import Case, output_width
from harness.checks.base import Finding
from harness.report.pieces import indented, input_function, placement
from harness.report.writer import EXCEPTIONS, Writer
from harness.subjects.te_ops_pipeline import op_call

HIDDEN = '''
@contextmanager
def hidden_parameters(module):
    """Take the parameters out of module.parameters(), as FSDP1 does; they stay reachable as plain attributes."""
    taken = [(owner, name, owner._parameters.pop(name)) for owner in module.modules() for name in [*owner._parameters]]
    for owner, name, parameter in taken:
        object.__setattr__(owner, name, parameter)
    yield
    for owner, name, parameter in taken:
        object.__delattr__(owner, name)
        owner._parameters[name] = parameter
'''


class PipelineProgram(Writer):
    """Programs with a ``te.ops.Sequential`` whose parameters are hidden."""

    def __init__(self, case: Case, finding: Finding, checks: Collection[str]) -> None:
        super().__init__(case, finding)
        assert case.fuser is not None
        self.hiding = case.fuser.hide_parameters
        self.imports.subjects.add("import transformer_engine.pytorch as te")

    def body(self) -> list[str]:
        lines = ["", "", "def pipeline():", *indented(self._pipeline()), "", ""]
        for function in (input_function(self.case), self._hiding_function()):
            if function:
                lines += [*function, "", ""]
        if self.check in EXCEPTIONS:
            step = [self.seed_line, self.input_line(), *self._forward_and_backward("hidden_parameters(model)")]
            loop = self.steps.loop([*step, *self.optimizer_lines()])
            prepared = self.preparing_lines("dict(model.named_parameters())", initial=False)
            return [*lines, *self._wrapped_model(), *self.recipe_lines(), *prepared, *self.tried(loop)]
        return lines + self._compared()

    def _pipeline(self) -> list[str]:
        width, ops, frozen = self.case.input.features, [], frozen_parameters(self.case.layers)
        for layer in self.case.layers:
            name, arguments = op_call(layer, width)
            ops.append(f"te.ops.{name}({self._arguments(name, arguments)}),")
            width = output_width((layer,), width)
        lines = [
            "torch.manual_seed(0)  # the same parameters each time",
            "model = te.ops.Sequential(",
            *indented(ops),
            ")",
        ]
        for path, _, name in (path.rpartition(".") for path in sorted(frozen)):
            lines.append(f"model[{path}].{name}.requires_grad_(False)")
        return [*lines, "return model"]

    def _arguments(self, name: str, arguments: dict[str, object]) -> str:
        signature = inspect.signature(getattr(te.ops, name).__init__).parameters
        plain = {key: value for key, value in arguments.items() if value != signature[key].default}
        texts = [str(value) if signature[key].default is inspect.Parameter.empty else f"{key}={value!r}"
                 for key, value in plain.items()]  # fmt: skip
        return ", ".join(texts) + placement(self.case) if arguments else ""

    def _hiding_function(self) -> list[str]:
        if self.hiding == "fsdp":
            self.imports.standard.add("import atexit")
            self.imports.torch |= {
                "from torch.distributed import HashStore, destroy_process_group, init_process_group",
                "from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy",
            }
            return []
        if self.hiding == "never":
            return []
        self.imports.standard.add("from contextlib import contextmanager")
        return HIDDEN.strip().splitlines()

    def _wrapped_model(self) -> list[str]:
        if self.hiding != "fsdp":
            return ["model = pipeline()"]
        return [
            'backend = "nccl" if torch.cuda.is_available() else "gloo"',
            "init_process_group(backend, store=HashStore(), rank=0, world_size=1)",
            "atexit.register(destroy_process_group)",
            'options = {"use_orig_params": True, "sharding_strategy": ShardingStrategy.NO_SHARD}',
            'place = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")',
            "model = FullyShardedDataParallel(pipeline(), device_id=place, **options)",
        ]

    def _forward_and_backward(self, hiding: str) -> list[str]:
        """Forward and backward; ``hiding`` is the text of a context in which the parameters are hidden."""
        contexts = [] if self.recipe == "None" else [self.autocast()]
        forward = [*self.forward_lines("y = model(x)", contexts), self.gradient_seed_line]
        backward = self.backward_lines()
        match self.hiding:
            case "from_start":
                # Of what forward gives without its parameters nothing may be differentiable.
                optional = backward if len(backward) > 1 else ["if y.requires_grad:", *indented(backward)]
                return [f"with {hiding}:", *indented([*forward, *optional])]
            case "between_forward_and_backward":
                return [*forward, f"with {hiding}:", *indented(backward)]
            case _:
                return forward + backward

    def _compared(self) -> list[str]:
        hides = "hidden_parameters" if self.hiding not in ("fsdp", "never") else ""
        step = [self.seed_line, self.input_line(), *self.clearing_lines("leaves")]
        if hides:
            self.imports.standard.add("from contextlib import nullcontext")
        step += self._forward_and_backward("(hidden_parameters if hides else nullcontext)(model)")
        step += self.observing_lines('{"x": x, **leaves}')
        arguments = "model, leaves, hides" if hides else "model, leaves"
        run = [
            f"def run({arguments}):",
            '    """Outputs and gradients."""',
            "    observed = {}",
            *indented(self.preparing_lines("leaves", initial=False)),
            *indented(self.steps.loop(step)),
            "    return observed",
        ]
        setup = ["plain, other = pipeline(), pipeline()"]
        setup += ["expected_leaves, leaves = dict(plain.named_parameters()), dict(other.named_parameters())"]
        if self.hiding == "fsdp":
            setup += [
                line.replace("model =", "other =").replace("pipeline()", "other") for line in self._wrapped_model()
            ]
        why = "The same operations on the same values, whether parameters are hidden or not: no difference is allowed."
        flags = (", True", ", False") if hides else ("", "")
        compare = self.comparison(why, f"other, leaves{flags[0]}", f"plain, expected_leaves{flags[1]}")
        return [*run, "", "", *setup, *self.recipe_lines(), *compare]
