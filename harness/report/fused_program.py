"""Programs with a te.LayerNormLinear or te.LayerNormMLP, compared with a TE module for each part."""

from __future__ import annotations

from collections.abc import Collection

from harness.build import parameter_names
from harness.case import Case, ExtraOutput, LayerNorm, Linear, RMSNorm, output_width
from harness.checks.base import Finding
from harness.report.pieces import indented, input_function
from harness.report.writer import EXCEPTIONS, Writer
from harness.subjects.te_fused_module import fused_call, parameter_places
from harness.subjects.te_ops_pipeline import op_call


class FusedModuleProgram(Writer):
    """Programs with a fused module of TE."""

    def __init__(self, case: Case, finding: Finding, checks: Collection[str]) -> None:
        super().__init__(case, finding)
        self.imports.subjects.add("import transformer_engine.pytorch as te")

    def body(self) -> list[str]:
        functions = [input_function(self.case), self._parts()]
        lines = ["", ""]
        for function in functions:
            if function:
                lines += [*function, "", ""]
        if self.check in EXCEPTIONS:
            model = "model" if self.check != "reference exception" else "parts"
            step = [self.seed_line, self.input_line(), *self._forward_and_backward(model)]
            return [*lines, *self._model(), *self.recipe_lines(), *self.tried(self.steps.loop(step))]
        return [*lines, *self._model(), *self._compared()]

    def _model(self) -> list[str]:
        kind, options = fused_call(self.case)
        text = ", ".join(f"{name}={value!r}" for name, value in options.items())
        placement = f"params_dtype=torch.{self.case.input.dtype}, device=device"
        lines = [f"model = te.{kind}(", f"    {text},", f"    {placement},", ")"]
        places = parameter_places(self.case)
        for path, layer in enumerate(self.case.layers):
            for name in getattr(layer, "frozen", ()):
                lines.append(f"model.{places[f'{path}.{name}']}.requires_grad_(False)")
        return [*lines, "parameters = dict(model.named_parameters())"]

    def _parts(self) -> list[str]:
        """``def parts(x)``: a module for each part, which is made once and holds the parameters of ``model``."""
        places = parameter_places(self.case)
        width, body, outputs = self.case.input.features, [], ["x"]
        for path, layer in enumerate(self.case.layers):
            if isinstance(layer, ExtraOutput):
                outputs.append("norm")
                body.append("norm = x")
                continue
            name, arguments = op_call(layer, width)
            options = "".join(f"{key}={value!r}, " for key, value in arguments.items())
            dtype = f"torch.{self.case.input.dtype}"
            match layer:
                case Linear():
                    call = f"te.Linear({options}params_dtype={dtype}, device=device)"
                case LayerNorm() | RMSNorm():
                    call = f"te.{name}({options}dtype={dtype}, device=device)"
                case _:
                    call = f"te.ops.{name}()"
            held = [f"{own}=model.{places[f'{path}.{own}']}" for own in parameter_names(layer)]
            body.append(f"x = part({path}, lambda: {call}{''.join(f', {entry}' for entry in held)})(x)")
            width = output_width((layer,), width)
        return [
            "made = {}",
            "",
            "",
            "def part(number, make, **parameters):",
            '    """The module of one part, which is made when it is first asked for."""',
            "    if number not in made:",
            "        made[number] = make()",
            "        for name, parameter in parameters.items():",
            "            made[number].register_parameter(name, parameter)",
            "    return made[number]",
            "",
            "",
            "def parts(x):",
            '    """The same computation, part by part."""',
            *indented(body),
            f"    return {', '.join(outputs)}",
        ]

    def _forward_and_backward(self, model: str) -> list[str]:
        call = f"{model}(x)"
        if any(isinstance(layer, ExtraOutput) for layer in self.case.layers):
            call = f"torch.cat([output.flatten() for output in {call}])"
        contexts = [] if self.recipe == "None" else [self.autocast()]
        forward = self.forward_lines(f"y = {call}", contexts)
        return [*forward, self.gradient_seed_line, *self.backward_lines()]

    def _compared(self) -> list[str]:
        step = [self.seed_line, self.input_line(), *self.clearing_lines("parameters")]
        step += [*self._forward_and_backward("model"), *self.observing_lines('{"x": x, **parameters}')]
        self.imports.subjects.add("from transformer_engine.pytorch.quantization import FP8GlobalStateManager")
        run = [
            "",
            "",
            "def run(model):",
            '    """Outputs and gradients."""',
            "    FP8GlobalStateManager.reset()  # the two sides must not share TE's global state",
            "    observed = {}",
            *indented(self.preparing_lines("parameters", initial=True)),
            *indented(self.steps.loop(step)),
            "    return observed",
        ]
        why = "The same kernels on the same values: no difference is allowed."
        exact = self.case.precision.recipe is not None
        if not exact:
            why = "GELU and its bias may be fused, and round otherwise: a part of the largest value is allowed."
        compare = self.comparison(why, "model", "parts", exact=exact)
        return [*run, "", "", *self.initial_lines(), *self.recipe_lines(), *compare]
