"""What the standalone programs of all subjects share: imports, steps, exceptions and the comparison of tensors."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field

from harness.case import Case
from harness.checks.base import Finding
from harness.precision import differentiated
from harness.report.pieces import Steps, indented, input_text, recipe_text

EXCEPTIONS = ("exception", "reference exception", "different exceptions")
"""Checks whose programs only run the case."""

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
        return f"te.fp8_autocast(fp8_recipe={'recipe' if shared else self.recipe})"

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

    def backward_lines(self, gradient: str = "torch.randn_like(y)") -> list[str]:
        """``y.backward(...)`` where there is a backward pass."""
        line = f"y.backward({gradient})"  # of whatever shape the outputs have
        if self.steps.uniform and differentiated(self.case, 0) and self.check != "output requires grad":
            return [line]
        return ["if y.requires_grad:", f"    {line}"]

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
        return [*lines, f'observed |= {{f"{label}gradient of {{name}}": leaf.grad {pairs}}}']
