"""What the standalone programs of all subjects share: imports, steps, exceptions and the comparison of tensors."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field

from harness.case import Case, ExtraOutput
from harness.checks.base import Finding
from harness.precision import differentiated
from harness.report.pieces import Steps, indented, input_text, laid_out, recipe_text

EXCEPTIONS = ("exception", "reference exception", "different exceptions")
"""Checks whose programs only run the case."""

OPTIMIZERS = {
    "sgd": "SGD(trained, lr=2**-6, momentum=0.5)",
    "adamw": "AdamW(trained, lr=2**-6)",
}
"""As ``harness.subjects.base.Optimizers`` makes them."""

PART_ALLOWED = 0.05
"""Of the largest value of a tensor, where the two sides of a comparison round differently: FP8 amplifies that."""


@dataclass(slots=True)
class Imports:
    """What a program imports, apart from torch."""

    standard: set[str] = field(default_factory=lambda: {"import sys", "from importlib.metadata import version"})
    torch: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)

    def text(self, reverts: tuple[str, ...]) -> list[str]:
        """The import statements; harness is imported for what a GPU, or the released packages, would do without it."""
        thunder = any("thunder" in line for line in self.subjects)
        condition = "torch.cuda.is_available()"
        why = "tefuzz: TE without a GPU"
        if thunder:
            condition = f'({condition} and hasattr(torch.Tensor, "rename"))'
            why += ", and Thunder 0.2.6 under torch 2.13"
        lines = [*_sorted(self.standard), "", "import torch", *_sorted(self.torch), ""]
        lines += [f"if not {condition}:", f"    import harness.device  # {why}", "", "    harness.device.activate()"]
        lines += _sorted(self.subjects)
        if reverts:
            lines += ["from harness.fixes import revert_until_exit"]
        return lines


def _sorted(lines: set[str]) -> list[str]:
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


def ending(expected: str) -> list[str]:
    """Say what is expected and what is seen, which is in ``faults``, and exit."""
    return [
        f'print("expected:", {expected!r})'.replace("'", '"')
        if "'" not in expected
        else f'print("expected: {expected}")',
        'print("seen:", *(faults or ["that"]), sep="\\n  ")',
        "sys.exit(int(bool(faults)))",
    ]


class Writer:
    """What the programs of both kinds of subject share."""

    def __init__(self, case: Case, finding: Finding) -> None:
        self.case = case
        self.finding = finding
        self.check = finding.bucket.check
        step = finding.evidence.step
        self.steps = Steps(case, len(case.steps) - 1 if step is None else step)
        self.imports = Imports()
        self.recipe = "None"
        recipe = recipe_text(case)
        if recipe is not None:
            self.recipe, names = recipe
            self.imports.subjects.add(f"from transformer_engine.common.recipe import {', '.join(sorted(names))}")

    def autocast(self) -> str:
        """The expression of the FP8 autocast, with a recipe that is ``recipe`` or a new one."""
        self.imports.subjects.add("import transformer_engine.pytorch as te")
        if self.recipe == "None":
            return "te.fp8_autocast(enabled=False)"
        shared = self.case.precision.recipe_object == "shared"
        enabled = "enabled=fp8, " if "fp8" in self.steps.habits else ""
        return f"te.fp8_autocast({enabled}fp8_recipe={'recipe' if shared else self.recipe})"

    def recipe_lines(self) -> list[str]:
        """``recipe = ...`` where one object is shared."""
        if self.recipe == "None" or self.case.precision.recipe_object != "shared":
            return []
        return [f"recipe = {self.recipe}"]

    def input_line(self) -> str:
        """``x = ...``, which requires grad where the case says."""
        grad = ""
        if self.case.input.requires_grad:
            grad = ".requires_grad_()" if self.steps.uniform else '.requires_grad_(mode == "train")'
        return f"x = {input_text(self.case, self.steps.batch)}{grad}"

    def forward_lines(self, call: str, contexts: list[str]) -> list[str]:
        """``y = call`` in its contexts."""
        if not self.steps.uniform:
            grad = 'torch.set_grad_enabled(mode == "train")'
            if any(step.mode == "inference" for step in self.case.steps):
                grad = f'torch.inference_mode() if mode == "inference" else {grad}'
            contexts = [grad, *contexts]
        if not contexts:
            return [call]
        return [f"with {', '.join(contexts)}:", f"    {call}"]

    def backward_lines(self, gradient: str = "torch.randn_like({output})") -> list[str]:
        """``y.backward(...)`` where there is a backward pass; ``{output}`` stands for the output."""
        if "backward" in self.steps.habits:
            return self._late_backward_lines(gradient)
        if self.case.input.gradient_layout == "expanded":
            line = "y.sum().backward()"
        else:
            line = f"y.backward({self._gradient(gradient, 'y')})"  # of whatever shape the outputs have
        if self.steps.uniform and differentiated(self.case, 0) and self.check != "output requires grad":
            return [line]
        return ["if y.requires_grad:", f"    {line}"]

    def _gradient(self, gradient: str, output: str) -> str:
        """The expression of an output gradient, in the memory layout of the case."""
        text = gradient.format(output=output)
        if self.case.input.gradient_layout == "expanded":
            return f"torch.ones_like({output})[..., :1].expand({output}.shape)"
        outputs = sum(isinstance(layer, ExtraOutput) for layer in self.case.layers) + 1
        return laid_out(text, self.case.input.gradient_layout) if outputs == 1 else text

    def _late_backward_lines(self, gradient: str) -> list[str]:
        """Backwards that wait for a later step, or that run twice."""
        wanted = "y.requires_grad"
        if any(step.backward == "never" for step in self.case.steps):
            wanted += ' and backward != "never"'
        lines = [f"order = [(backward, step, y)] if {wanted} else []"]
        if self.steps.defers:
            lines = [
                f"own = [(backward, step, y)] if {wanted} else []",
                f'now = own if backward in ("now", "twice") or step == {len(self.case.steps) - 1} else []',
                'order = [late for late in waiting if late[0] == "after_next_forward"] + now',
                'order += [late for late in waiting if late[0] == "after_next_step"]',
                "waiting = [] if now else own",
            ]
        gradient = self._gradient(gradient, "output")
        body = ["torch.manual_seed(number + 101)", f"output.backward({gradient})"]
        if any(step.backward == "twice" for step in self.case.steps):
            body[-1] = f"output.backward({gradient}, retain_graph=again)"
            body = ['for again in (True, False) if when == "twice" else (False,):', *indented(body)]
        lines += ["for when, number, output in order:", *indented(body)]
        return lines

    def clearing_lines(self, leaves: str) -> list[str]:
        """What becomes of the gradients of the last step; ``leaves`` is the expression of a dict."""
        if "gradients" not in self.steps.habits:
            return [f"for leaf in {leaves}.values():", "    leaf.grad = None"]
        return [
            f"for leaf in {leaves}.values():",
            '    if gradients == "zeroed" and leaf.grad is not None:',
            "        leaf.grad.zero_()",
            '    elif gradients == "none":',
            "        leaf.grad = None",
        ]

    def preparing_lines(self, leaves: str, *, initial: bool) -> list[str]:
        """What comes before the first step of a side: optimizers, and leaves as they were before the other side.

        With ``initial`` both sides train the same leaves.
        """
        lines = []
        if not {"gradients", "backward"}.isdisjoint(self.steps.habits):
            lines += [f"for leaf in {leaves}.values():", "    leaf.grad = None"]
        if "optimizer" not in self.steps.habits:
            return lines
        if initial:
            lines += ["with torch.no_grad():", f"    for name, leaf in {leaves}.items():"]
            lines += ["        leaf.copy_(initial[name])  # the other side may have trained them"]
        used = {step.optimizer for step in self.case.steps} - {"none"}
        made = ", ".join(f'"{name}": torch.optim.{OPTIMIZERS[name]}' for name in sorted(used))
        lines += [f"trained = [leaf for leaf in {leaves}.values() if leaf.requires_grad]"]
        return [*lines, f"optimizers = {{{made}}}"]

    def initial_lines(self) -> list[str]:
        """``initial = ...``, where ``preparing_lines`` needs it."""
        if "optimizer" not in self.steps.habits:
            return []
        return ["initial = {name: leaf.detach().clone() for name, leaf in parameters.items()}"]

    def optimizer_lines(self) -> list[str]:
        """The optimizer's step, where the schedule has any."""
        if "optimizer" not in self.steps.habits:
            return []
        return ['if optimizer != "none":', "    optimizers[optimizer].step()"]

    @property
    def seed_line(self) -> str:
        """The same random numbers for all models, whatever these draw when they are made."""
        seed = "1" if self.steps.last == 0 else "step + 1"
        return f"torch.manual_seed({seed})  # the same data for all"

    @property
    def gradient_seed_line(self) -> str:
        """Of the output gradient: with the seed of the input, the input gradient of a norm nearly cancels."""
        return f"torch.manual_seed({'2' if self.steps.last == 0 else 'step + 101'})"

    def tried(self, lines: list[str]) -> list[str]:
        """The lines, of which an exception is the finding."""
        kind = self.finding.bucket.where.partition(":")[0]
        known = isinstance(getattr(builtins, kind, None), type)
        return [
            f'print("expected: {"no exception" if self.check != "different exceptions" else self.finding.promise}")',
            "try:",
            *indented(lines),
            f"except {kind if known else 'Exception'} as error:",
            '    print("seen:", f"{type(error).__name__}: {error}")',
            "    sys.exit(1)",
            'print("seen: no exception")',
        ]

    def comparison(
        self, why: str, seen: str, expected: str, *, one_sided: bool = True, exact: bool = True
    ) -> list[str]:
        """Compare two dicts of tensors by name, where a gradient that is None has no entry.

        ``one_sided`` says that a name on one side only is a fault; FP8 state that is not used may be kept or not.
        Without ``exact`` a part of the largest value is allowed.
        """
        allowed = "0" if exact else f"{PART_ALLOWED} * expected[name].abs().max().item()"
        missing = 'faults = [f"{name}: None on one side only" for name in expected.keys() ^ seen.keys()]'
        return [
            f"# {why}",
            f"expected, seen = run({expected}), run({seen})",
            missing if one_sided else "faults = []",
            "for name in [name for name in expected if name in seen]:",
            f"    wrong = ~torch.isclose(seen[name], expected[name], rtol=0, atol={allowed}, equal_nan=True)",
            "    if wrong.any():",
            "        largest = (seen[name] - expected[name]).abs().max()",
            '        faults.append(f"{name}: {wrong.sum()} of {wrong.numel()} values differ, by up to {largest:.3g}")',
            *ending(self.finding.promise),
        ]

    def observing_lines(self, leaves: str, *, output: bool = True) -> list[str]:
        """Put the output and the gradients of a step into ``observed``."""
        label = self.steps.label
        lines = [f'observed[{"f" if label else ""}"{label}output"] = y.detach()'] if output else []
        pairs = f"for name, leaf in {leaves}.items() if leaf.grad is not None"
        grad = "leaf.grad.clone()" if not {"gradients", "backward"}.isdisjoint(self.steps.habits) else "leaf.grad"
        return [
            *lines,
            f'observed |= {{f"{label}gradient of {{name}}": {grad} {pairs}}}',
            *self.optimizer_lines(),
        ]
