"""Programs with ``thunder.jit``: they look at traces, or compare with float64 (torch executor) or with eager TE."""

from __future__ import annotations

import re
from collections.abc import Collection

from harness import te_executors
from harness.case import Case, Transform
from harness.checks.base import Finding
from harness.precision import claimed_linears
from harness.program import function_source, module_source, parameter_expressions
from harness.report.examinations import Examination, examination
from harness.report.pieces import LINE, indented, input_function, parameter_lines, shared_parameters
from harness.report.writer import EXCEPTIONS, Writer, ending

EXACT = {"F.relu", "torch.chunk", "torch.is_grad_enabled"}
"""Functions that round nowhere."""

DEAD_CODE_ELIMINATION = (
    "",
    "",
    "class DeadCodeElimination(thunder.Transform):",
    "    def transform_traces_pre_prologue(self, prologue, computation, epilogue, **_):",
    "        return prologue, dce(computation), epilogue",
    "",
    "",
)


class JitProgram(Writer):
    """Programs with ``thunder.jit``."""

    def __init__(self, case: Case, finding: Finding, checks: Collection[str]) -> None:
        super().__init__(case, finding)
        assert case.jit is not None
        self.jit = case.jit
        self.is_module = case.jit.entry == "module"
        source = module_source if self.is_module else function_source
        self.model = source(case.layers, case.input.features, case.jit.names).rstrip().splitlines()
        self.imports.subjects.add("import thunder")
        self.shared = shared_parameters(case)
        arguments = list(parameter_expressions(case.layers, case.input.features, case.jit.names).values())
        self.names = arguments
        self.all = "*parameters.values()" if arguments else ""
        if self.shared:
            self.all = ", ".join(f'parameters["{self.shared.get(name, name)}"]' for name in arguments)
        # FP8 state is compared where nothing that a user looks at goes wrong, and where one state is the whole of it.
        numbers = not {"output", "gradient", "gradient missing"}.isdisjoint(checks)
        whole = self._claims_any and not self.steps.several_shapes
        self.compares_states = self.check.startswith("fp8") and not numbers and whole

    def body(self) -> list[str]:
        linears = len(self.finding.evidence.layers)
        bucket = self.finding.bucket
        look = examination(self.check, bucket.stage, bucket.where, linears)
        if look is not None:
            return self._examined(look)
        if self.check in EXCEPTIONS:
            return self._raising()
        return self._compared_with_float64() if self.jit.executor == "torch" else self._compared_with_te()

    def _definitions(self, *functions: list[str]) -> list[str]:
        draw = input_function(self.case)
        lines = ["", "", *self.model, "", ""]
        for function in (draw, *functions):
            if function:
                lines += [*function, "", ""]
        lines += [*parameter_lines(self.case), *self.initial_lines()]
        if self.is_module:
            lines += ["model = Model()"]
            if self.names:
                lines += self._registration()
        return lines

    def _registration(self) -> list[str]:
        """Put the parameters into the module, or into submodules of it."""
        items = "parameters"
        if self.shared:
            pairs = ", ".join(f'"{name}": parameters["{owner}"]' for name, owner in self.shared.items())
            items = f"(parameters | {{{pairs}}})"
        head = f"for name, value in {items}.items():"
        if not any("." in name for name in self.names):
            return [head, "    model.register_parameter(name, value)"]
        return [
            head,
            '    owner, _, attribute = name.rpartition(".")',
            "    if owner and not hasattr(model, owner):",
            "        model.add_module(owner, nn.Module())",
            "    model.get_submodule(owner).register_parameter(attribute, value)",
        ]

    def _joined(self, call: str) -> str:
        """One tensor of all outputs, where the model gives several."""
        several = "," in self.model[-1].partition("return ")[2]
        return f"torch.cat([output.flatten() for output in {call}])" if several else call

    def _transform(self, name: Transform) -> str:
        """An expression for a new transform."""
        if name == "transformer_engine":  # imported with its executor
            return f"{te_executors.TRANSFORM_V2_NAME}()"
        if name == "constant_folding":
            self.imports.subjects.add("from thunder.transforms.constant_folding import ConstantFolding")
            return "ConstantFolding()"
        self.imports.subjects.add("from thunder.core.transform_common import dce")
        return "DeadCodeElimination()"

    def _jit_line(self) -> list[str]:
        return [*(DEAD_CODE_ELIMINATION if "dead_code_elimination" in self.jit.transforms else ()), *self._jitted()]

    def _jitted(self) -> list[str]:
        options = []
        if self.jit.executor == "torch":
            options.append("executors=[thunder.pytorch_executor]")
        elif self.jit.executor == "transformer_engine":
            names = f"{te_executors.TRANSFORM_V2_NAME}, {te_executors.V2_NAME}"
            self.imports.subjects.add(f"from {te_executors.V2_MODULE} import {names}")
            options.append(f"executors=[{te_executors.V2_NAME}]")
        else:
            self.imports.subjects.add(f"from {te_executors.V1_MODULE} import {te_executors.V1_NAME}")
            options.append(f"executors=[{te_executors.V1_NAME}]")
            if self.recipe != "None":
                options.append(f"te_fp8_recipe={self.recipe}")
        if self.jit.all_transforms:
            options.append(f"transforms=[{', '.join(map(self._transform, self.jit.all_transforms))}]")
        if self.jit.cache != "constant values":
            options.append(f'cache="{self.jit.cache}"')
        call = f"thunder.jit(model, {', '.join(options)})"
        if self.jit.entry == "thunderfx":
            self.imports.subjects |= {"from thunder.dynamo import thunderfx", "import torch._dynamo"}
            lazily = "torch._dynamo.config.use_lazy_graph_module = False  # Thunder's interpreter cannot make it later"
            return [lazily, f"jitted = thunderfx(model, dynamic=False, {', '.join(options)})"]
        if self.jit.entry == "grad":
            self.imports.subjects.add("from thunder.core.transforms import grad")
            call = f"grad({call})"
        return [f"jitted = {call}"]

    @property
    def _uses_autocast(self) -> bool:
        return self.jit.executor == "transformer_engine"

    def _step(self) -> list[str]:
        """One step of the JIT alone."""
        call = "jitted(x)" if self.is_module else f"jitted(x, {self.all})".replace(", )", ")")
        lines = [self.input_line()]
        if self.is_module and not self.steps.uniform:
            lines.append('jitted.train(mode != "eval")')
        contexts = [self.autocast()] if self._uses_autocast else []
        if self.jit.entry == "grad":
            return lines + self.forward_lines(call, contexts)
        lines += self.forward_lines(f"y = {self._joined(call)}", contexts) + self.backward_lines()
        return lines + self.optimizer_lines()

    def _loop(self, step: list[str]) -> list[str]:
        """The steps of a program that has one side."""
        return self.preparing_lines("parameters", initial=False) + self.steps.loop(step)

    def _examined(self, look: Examination) -> list[str]:
        for line in look.imports:
            (self.imports.subjects if "thunder" in line else self.imports.standard).add(line)
        functions = look.functions.splitlines()
        steps = self._loop(self._step())
        recipe = self.recipe_lines() if self._uses_autocast else []
        head = self._definitions(functions) + self._jit_line() + recipe + steps
        return [*head, "", *self._of_graph(look.code.splitlines()), *ending(self.finding.promise)]

    def _of_graph(self, lines: list[str]) -> list[str]:
        """Lines about the traces of ``jitted``; under ThunderFX those of the last graph that Dynamo made."""
        if self.jit.entry != "thunderfx":
            return lines
        graph = "graph = jitted._backend.subgraph_infos[-1].thunder_compiled_fns[-1]"
        return [graph, *(line.replace("(jitted)", "(graph)") for line in lines)]

    def _raising(self) -> list[str]:
        if self.check == "reference exception":
            return self._raising_reference()
        recipe = self.recipe_lines() if self._uses_autocast else []
        return self._definitions() + self._jit_line() + recipe + self.tried(self._loop(self._step()))

    def _raising_reference(self) -> list[str]:
        contexts = [self.autocast()] if self._uses_autocast else []
        lines = [
            self.input_line(),
            *self.forward_lines(f"y = {self._joined('eager(x)')}", contexts),
            *self.backward_lines(),
            *self.optimizer_lines(),
        ]
        functions = [self._te_linear(), self._alone(), self._eager()]
        return [
            *self._definitions(*functions),
            "linears = {}",
            *self.recipe_lines(),
            *self.tried(self._loop(lines)),
        ]

    def _te_linear(self) -> list[str]:
        """``def te_linear``, where TE computes any linear."""
        if not self._claims_any:
            return []
        self.imports.subjects.add("import transformer_engine.pytorch as te")
        kind = "te.ops.Linear" if self.jit.executor == "transformer_engine" else "te.Linear"
        options = "device=device"
        if kind == "te.Linear" or self.case.input.dtype != "float32":
            options += f", {'dtype' if kind == 'te.ops.Linear' else 'params_dtype'}=weight.dtype"
        # Every call has a state of its own in the JIT, also of a weight that is used twice.
        weights = [expression for line in self.model for expression in re.findall(r"F\.linear\(\w+, ([^,)]+)", line)]
        key, counted = ("(weight, x.shape)" if self.steps.several_shapes else "weight"), []
        if self.shared or len(set(weights)) < len(weights):
            key, counted = key.replace("weight", "len(calls)"), ["    calls.append(weight)"]
        lines = [
            "def te_linear(x, weight, bias=None):",
            f'    """F.linear as a {kind} of its own, with the same parameters."""',
            *counted,
            f"    if {key} not in linears:",
            f"        linears[{key}] = linear = {kind}(*weight.shape[::-1], bias=bias is not None, {options})",
            '        linear.register_parameter("weight", weight)',
            "        if bias is not None:",
            '            linear.register_parameter("bias", bias)',
            f"    return linears[{key}](x)",
        ]
        if not self._all_claimed:
            enabled = "torch.is_grad_enabled()"
            if "fp8" in self.steps.habits:
                self.imports.subjects.add("from transformer_engine.pytorch.quantization import FP8GlobalStateManager")
                enabled += " and FP8GlobalStateManager.is_fp8_enabled()"
            lines[2 + len(counted) : 2 + len(counted)] = [
                "    fits = x[..., 0].numel() % 8 == 0 and weight.shape[0] % 8 == 0 and weight.shape[1] % 16 == 0",
                f"    if not (fits and {enabled}):  # such a linear is left to torch",
                "        return nn.functional.linear(x, weight, bias)",
            ]
        return lines

    def _state_of_linears(self) -> list[str]:
        """What ``te_linear`` remembers."""
        lines = self._te_linear()
        counts = any("calls.append" in line for line in lines)
        return ["linears = {}" if not counts else "linears, calls = {}, []"] if lines else []

    @property
    def _claims_any(self) -> bool:
        return any(claimed_linears(self.case, index) for index in range(self.steps.last + 1))

    @property
    def _all_claimed(self) -> bool:
        linears = sum("F.linear(" in line for line in self.model)
        return all(len(claimed_linears(self.case, index)) == linears for index in range(self.steps.last + 1))

    def _eager(self) -> list[str]:
        """``def eager(x)``: the model without the JIT, by other functions behind the names that it calls."""
        self.imports.standard |= {"from types import SimpleNamespace", "from unittest.mock import patch"}
        how, patches = "its linears computed by TE", []
        for owner, names in self._called().items():
            values = ", ".join(f"{name}={self._eagerly(owner, name)}" for name in names)
            patches.append(f'patch("__main__.{owner}", SimpleNamespace({values}))')
        prepare = []
        if any("alone(" in line for line in patches):
            how += ", all else by Thunder, each function alone"
            if not self.case.input.requires_grad:
                # Thunder treats all layers alike if any is differentiated; autograd would leave out the first ones.
                prepare = [
                    "# Thunder compiles all of a model as differentiated if any of it is.",
                    "x = x.detach().requires_grad_(torch.is_grad_enabled())",
                ]
        if any("checkpoint(" in line for line in self.model):
            patches.append('patch("__main__.checkpoint", lambda region, x, **_: region(x))')
            how += ", without recomputation"
        if not self._uses_autocast:  # v1 has its recipe from thunder.jit, and `run` no autocast
            patches.append(self.autocast())
        call = "model(x)" if self.is_module else f"model(x, {self.all})"
        if self._te_linear() and any("calls.append" in line for line in self._te_linear()):
            prepare.append("calls.clear()")
        body = [f"    return {call}"]
        if self.jit.entry == "grad" and self.check not in EXCEPTIONS:
            body = [f"    y = {call}", "y.backward(torch.ones_like(y))"]
        contexts = [f"with {', '.join(patches)}:"]
        if len(contexts[0]) > LINE:
            contexts = ["with (", *indented([f"{context}," for context in patches]), "):"]
        return ["def eager(x):", f'    """The model in eager mode: {how}."""', *indented([*prepare, *contexts, *body])]

    def _called(self) -> dict[str, list[str]]:
        """The functions that the model's text calls, by the module that it finds them in."""
        called: dict[str, list[str]] = {"F": ["linear"]}
        for call in sorted({call for line in self.model for call in re.findall(r"\b(?:F|torch)\.\w+", line)}):
            owner, _, name = call.partition(".")
            if name not in called.setdefault(owner, []):
                called[owner].append(name)
        if "torch" in called and not self._all_claimed:
            called["torch"].append("is_grad_enabled")
        return called

    def _eagerly(self, owner: str, name: str) -> str:
        """What computes a function of the model in eager mode."""
        call = f"{owner}.{name}"
        if call == "F.linear":
            return "te_linear" if self._claims_any else call
        return call if call in EXACT else f"alone({call})"

    def _alone(self) -> list[str]:
        """``def alone``, where the model needs it: torch and the JIT round norms and activations differently."""
        if all(
            not self._eagerly(owner, name).startswith("alone")
            for owner, names in self._called().items()
            for name in names
        ):
            return []
        return [
            "def alone(function):",
            '    """A function as Thunder compiles it alone: it rounds as in the whole model."""',
            "    return thunder.jit(function, executors=[thunder.pytorch_executor])",
        ]

    def _jit_function(self) -> list[str]:
        """``def jit(x)``: what ``run`` calls, where that is more than ``jitted``."""
        if self.is_module:
            return []
        call = f"jitted(x, {self.all})"
        if self.jit.entry != "grad":
            return ["def jit(x):", f"    return {call}"]
        return [
            "def jit(x):",
            f"    for leaf, gradient in zip([x, *parameters.values()], {call}):",
            "        leaf.grad = gradient",
        ]

    def _run_function(self) -> list[str]:
        """``def run(model)``: outputs and gradients of all steps, with the same data for every model."""
        returns = self.jit.entry != "grad"
        contexts = [self.autocast()] if self._uses_autocast else []
        step = [self.seed_line, self.input_line(), *self.clearing_lines("parameters")]
        prepared = self.preparing_lines("parameters", initial=True)
        step += self.forward_lines(f"y = {self._joined('model(x)')}" if returns else "model(x)", contexts)
        step += [self.gradient_seed_line, *self.backward_lines()] if returns else []
        reset = "FP8GlobalStateManager.reset()  # the two sides must not share TE's global state"
        if self.compares_states:
            return [
                "def run(model, states):",
                '    """FP8 scales and amax histories after the last step."""',
                *indented([reset, *prepared, *self.steps.loop([*step, *self.optimizer_lines()])]),
                "    observed = {}",
                '    for kind, used, found in zip(("forward", "backward"), (2, 1), states()):',
                "        for index, state in enumerate(found):",
                '            observed[f"{kind} linear {index}, scale"] = state.scale[:used]',
                '            observed[f"{kind} linear {index}, amax history"] = state.amax_history[:, :used]',
                "    return observed",
            ]
        step += self.observing_lines('{"x": x, **parameters}', output=returns)
        lines = [reset, "observed = {}", *prepared, *self.steps.loop(step), "return observed"]
        return ["def run(model):", '    """Outputs and gradients of a model, by name."""', *indented(lines)]

    def _states_functions(self) -> list[list[str]]:
        """Where eager TE and the JIT keep the FP8 state of input, weight (forward) and output gradient (backward)."""
        if not self.compares_states:
            return []
        both = '"""FP8 state of the linears in forward, and in backward from the last to the first."""'
        if self.jit.executor == "transformer_engine":
            eager = [
                "metas = [linear.basic_ops[0]._fp8_metas for linear in linears.values()]",
                'forward = [meta["forward"]["scaling_fwd"] for meta in metas]',
                'return forward, [meta["backward"]["scaling_bwd"] for meta in reversed(metas) if meta["backward"]]',
            ]
            jit = [
                "traces = (thunder.last_traces(jitted)[-1], *thunder.last_backward_traces(jitted)[-1:])",
                'symbols = [[b for b in t.bound_symbols if "get_te_fp8_state" in b.sym.name] for t in traces]',
                "return [[b._call_ctx[b.sym.name].state for b in bound] for bound in symbols]",
            ]
            if self.jit.entry == "grad":  # one trace holds both passes
                jit[-1:] = [
                    "(states,) = [[b._call_ctx[b.sym.name].state for b in bound] for bound in symbols]",
                    "return states[: len(states) // 2], states[len(states) // 2 :]",
                ]
        else:
            metas = 'return [meta["scaling_fwd"] for meta in metas], [meta["scaling_bwd"] for meta in reversed(metas)]'
            eager = ["metas = [linear.fp8_meta for linear in linears.values()]", metas]
            jit = [
                "symbols = thunder.last_traces(jitted)[-1].bound_symbols",
                'bound = [b for b in symbols if b.sym.name.startswith("te_linear_")]',
                "metas = [b._call_ctx[b.sym.name].func.fp8_meta for b in bound]",
                metas,
            ]
        return [
            ["def eager_states():", f"    {both}", *indented(eager)],
            ["def jit_states():", *indented(self._of_graph(jit))],
        ]

    def _compared_with_te(self) -> list[str]:
        self.imports.subjects.add("from transformer_engine.pytorch.quantization import FP8GlobalStateManager")
        jit, states = self._jit_function(), self._states_functions()
        functions = [
            self._te_linear(),
            self._alone(),
            self._eager(),
            *([jit] if jit else []),
            *states,
            self._run_function(),
        ]
        lines = [*self._definitions(*functions), *self._state_of_linears(), *self.recipe_lines(), *self._jit_line()]
        if self._uses_autocast:
            self.imports.standard.add("import os")
            lines.append('os.environ["NVTE_UNFUSED_FP8_UPDATE"] = "1"  # eager TE then updates scales as Thunder does')
        why = "Both sides call the same kernels on the same values: no difference is allowed."
        exact = not any(self._eagerly("torch", name).startswith("alone") for name in self._called().get("torch", ()))
        if not exact:  # Thunder rounds between these and the operations around them, or not, as they are compiled
            why = "Sigmoid rounds differently in the model and alone, and FP8 amplifies that: 5% are allowed."
        seen, expected = "jit" if jit else "jitted", "eager"
        if states:
            seen, expected = f"{seen}, jit_states", f"{expected}, eager_states"
        return lines + self.comparison(why, seen, expected, one_sided=not states, exact=exact)

    def _compared_with_float64(self) -> list[str]:
        dtype = f"torch.{self.case.input.dtype}"
        run = [
            "def run(model, parameters, dtype):",
            '    """Outputs and gradients of a model, by name."""',
            "    observed = {}",
            *indented(self.preparing_lines("parameters", initial=True)),
            *indented(self.steps.loop(self._step_in_dtype())),
            "    return observed",
        ]
        lines = self._definitions(run) + self._jit_line()
        if self.is_module:
            self.imports.standard.add("import copy")
            exact = ["double = copy.deepcopy(model).double()", "doubles = dict(double.named_parameters())"]
        else:
            doubles = "{name: p.detach().double().requires_grad_(p.requires_grad) for name, p in parameters.items()}"
            exact = ["double = model", f"doubles = {doubles}"]
        if self.jit.entry == "grad":
            self.imports.torch.add("from torch import autograd")
            exact[0] = "model = double = lambda *leaves, model=model: autograd.grad(model(*leaves).sum(), leaves)"
        return [
            *lines,
            *exact,
            f"seen, eager = run(jitted, parameters, {dtype}), run(model, parameters, {dtype})",
            "exact = run(double, doubles, torch.float64)",
            'faults = [f"{name}: None on one side only" for name in exact.keys() ^ seen.keys()]',
            "for name, right in exact.items() if not faults else ():",
            "    error, rounding = ((side[name] - right).abs().max().item() for side in (seen, eager))",
            "    # Thunder may round at other places: 16 times torch's error, and 16 units of rounding.",
            f"    allowed = 16 * (rounding + torch.finfo({dtype}).eps * right.abs().max().item())",
            "    if not error <= allowed:  # NaN is an error too",
            '        faults.append(f"{name}: error {error:.3g} against float64, allowed {allowed:.3g}")',
            *ending("what float64 gives, but for rounding"),
        ]

    def _step_in_dtype(self) -> list[str]:
        data = [self.seed_line, self.input_line()]
        x = next(line for line in data if line.startswith("x = "))
        cut = x.index(".requires_grad_(") if ".requires_grad_(" in x else len(x)
        data[data.index(x)] = f"{x[:cut]}.to(dtype){x[cut:]}"
        body = [*data, *self.clearing_lines("parameters")]
        call = "model(x)" if self.is_module else f"model(x, {self.all})"
        if self.jit.entry == "grad":
            label = self.steps.label
            pairs = 'zip(["x", *parameters], gradients)'
            body += self.forward_lines(f"gradients = {call}", [])
            return [*body, f'observed |= {{f"{label}gradient of {{name}}": gradient for name, gradient in {pairs}}}']
        body += self.forward_lines(f"y = {self._joined(call)}", [])
        body += [self.gradient_seed_line, *self.backward_lines("torch.randn({output}.shape).to({output})")]
        return body + self.observing_lines('{"x": x, **parameters}')
