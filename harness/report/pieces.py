"""Pieces of a standalone program, each the text of what a case holds: tensors, recipe, steps."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import textwrap
from typing import Any

import msgspec

from harness import build
from harness.case import Case, Data, Distribution, ExtraOutput, FusedModule, Fuser, Input, Jit, Precision, Step
from harness.precision import make_recipe
from harness.program import parameter_expressions, parameter_slots

INDENT = "    "
LINE = 118
HABITS = ("fp8", "gradients", "backward", "optimizer")
"""Fields of steps that a program has a variable for where it needs one."""

CARRIED_OVER: dict[type[Data], set[str]] = {
    Case: {"schema", "layers", "input", "precision", "steps", "jit", "fuser", "fused_module", "seed"},
    Input: {"batch", "features", "dtype", "distribution", "requires_grad", "layout", "gradient_layout"},
    Precision: {"recipe", "recipe_object"},
    Step: {"mode", "batch", "fp8", "gradients", "backward", "optimizer"},
    Jit: {"executor", "cache", "entry", "names", "transforms"},
    Fuser: {"hide_parameters"},
    FusedModule: set(),
}
"""The fields of a case that a program follows; ``left_out`` names all others that matter."""


def left_out(case: Case) -> list[str]:
    """Fields that are not at their default and that a program does not follow: it has to say so."""
    parts: list[Any] = [case, case.input, case.precision, *case.steps, case.jit, case.fuser, case.fused_module]
    names = [
        f"{type(part).__name__}.{field.name}"
        for part in parts
        if part is not None
        for field in msgspec.structs.fields(part)
        if field.name not in CARRIED_OVER[type(part)] and getattr(part, field.name) != field.default
    ]
    outputs = sum(isinstance(layer, ExtraOutput) for layer in case.layers) + 1
    if outputs > 1 and case.input.gradient_layout in ("transposed", "strided"):
        names.append("Input.gradient_layout")  # programs make one tensor of all outputs
    return list(dict.fromkeys(names))


def placement(case: Case) -> str:
    """Keyword arguments of a new tensor, with the comma before them."""
    return ", device=device" + ("" if case.input.dtype == "float32" else f", dtype=torch.{case.input.dtype}")


def parameter_lines(case: Case) -> list[str]:
    """``parameters = {...}``: random values of the right shapes, in the order of the model's arguments."""
    own = own_parameters(case)
    if not own:
        return ["parameters = {}"]
    values = {expression: build.make_parameters(case)[name] for name, expression in own.items()}
    frozen = [expression for name, expression in own.items() if name in build.frozen_parameters(case.layers)]
    shapes = [f'"{expression}": {tuple(value.shape)!r}' for expression, value in values.items()]
    # The scale of a norm is around 1; a tensor of few values does not tell.
    ones = [name for name, value in values.items() if value.numel() >= 16 and round(float(value.float().mean())) == 1]
    plain = build.DTYPES[case.input.dtype]
    others = [f'"{name}": {value.dtype}' for name, value in values.items() if value.dtype != plain]
    text, options = f"torch.randn(shape{placement(case)}) / shape[-1] ** 0.5", ""
    lines = filled("shapes = {", shapes, "}")
    if ones:
        lines += filled("around_one = {", [f'"{name}"' for name in ones], "}")
        text = f"(name in around_one) + {text}"
    if others:
        lines += filled("dtypes = {", others, "}")
        text = f"({text}).to(dtypes.get(name, {plain}))"
    if frozen:
        lines += filled("frozen = {", [f'"{name}"' for name in frozen], "}")
        options = ", requires_grad=name not in frozen"
    return [*lines, f"parameters = {{name: nn.Parameter({text}{options}) for name, shape in shapes.items()}}"]


def own_parameters(case: Case) -> dict[str, str]:
    """The name in the program of every parameter, by its name in the case; a shared one goes by that of its owner."""
    layers, width = case.layers, case.input.features
    names = "plain" if case.jit is None else case.jit.names
    expressions = parameter_expressions(layers, width, names)
    return {name: expressions[slot] for slot, name in parameter_slots(layers, width).items() if slot == name}


def shared_parameters(case: Case) -> dict[str, str]:
    """Arguments and attributes that hold the parameter of another one, with the name of that one."""
    layers, width = case.layers, case.input.features
    names = "plain" if case.jit is None else case.jit.names
    expressions = parameter_expressions(layers, width, names)
    slots = parameter_slots(layers, width)
    return {expressions[slot]: expressions[name] for slot, name in slots.items() if slot != name}


def filled(head: str, items: list[str], tail: str) -> list[str]:
    """A list of items on one line, or on as few lines as they need."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) <= LINE:
        return [line]
    rows = textwrap.wrap(", ".join(items) + ",", LINE - len(INDENT), break_long_words=False)
    return [head, *indented(rows), tail]


def input_function(case: Case) -> list[str]:
    """``def draw(*shape)``: values of the case's distribution; nothing for normal ones."""
    if case.input.distribution == "normal":
        return []
    body = distribution_source(case.input.distribution)
    lines = ["def draw(*shape):", f'{INDENT}"""Values of the distribution {case.input.distribution!r}."""']
    if "normal" in body:
        lines.append(f"{INDENT}normal = torch.randn(shape)")
    return [*lines, *textwrap.indent(body, INDENT).splitlines()]


def distribution_source(distribution: Distribution) -> str:
    """The statements of ``build.draw_tensor`` for one distribution, drawing from torch's own generator."""
    source = textwrap.dedent(inspect.getsource(build.draw_tensor))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.match_case) and ast.unparse(node.pattern) == repr(distribution):
            lines = source.splitlines()[node.pattern.lineno : node.body[-1].end_lineno]
            return textwrap.dedent("\n".join(lines)).replace(", generator=generator", "")
    raise LookupError(f"build.draw_tensor has no case for {distribution!r}")


def laid_out(text: str, layout: str) -> str:
    """The expression ``text`` in another memory layout, as ``build.laid_out`` makes it."""
    match layout:
        case "transposed":
            return f"{text}.mT.contiguous().mT"
        case "strided":
            return f"{text}.repeat_interleave(2, dim=-1)[..., ::2]"
        case _:
            return text


def input_text(case: Case, batch: str) -> str:
    """The expression of a step's input, whose leading dimensions are given as text."""
    layout = case.input.layout if case.input.batch or case.input.layout == "strided" else "contiguous"
    return laid_out(_contiguous_input_text(case, batch), layout)


def _contiguous_input_text(case: Case, batch: str) -> str:
    shape = f"{batch}{case.input.features}"
    if case.input.distribution == "normal":
        return f"torch.randn({shape}{placement(case)})"
    dtype = "" if case.input.dtype == "float32" else f", torch.{case.input.dtype}"
    return f"draw({shape}).to(device{dtype})"


def recipe_text(case: Case) -> tuple[str, set[str]] | None:
    """The expression of the recipe, and the names that it needs from ``transformer_engine.common.recipe``."""
    recipe = make_recipe(case.precision.recipe)
    if recipe is None:
        return None
    plain = type(recipe)()
    options, names = [], {type(recipe).__name__}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if value == getattr(plain, field.name):
            continue
        if isinstance(value, enum.Enum):
            names.add(type(value).__name__)
            options.append(f"{field.name}={type(value).__name__}.{value.name}")
        else:
            options.append(f"{field.name}={value!r}")
    return f"{type(recipe).__name__}({', '.join(options)})", names


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a program: one, a plain range, or a list of modes and shapes."""

    case: Case
    last: int
    """Index of the last step that the program runs."""

    @property
    def habits(self) -> list[str]:
        """The further fields of steps that are not at their defaults everywhere."""
        steps = self.case.steps[: self.last + 1]
        return [name for name in HABITS if any(getattr(step, name) != getattr(Step(), name) for step in steps)]

    @property
    def defers(self) -> bool:
        """Whether a backward waits for a later step."""
        return any(step.deferred for step in self.case.steps[: self.last])

    @property
    def uniform(self) -> bool:
        """Whether all steps train on one shape, and alike."""
        return not self.habits and all(
            step.mode == "train" and build.step_batch(self.case, index) == build.step_batch(self.case, 0)
            for index, step in enumerate(self.case.steps[: self.last + 1])
        )

    @property
    def batch(self) -> str:
        """The leading dimensions of the input, as text with a comma after each."""
        return "".join(f"{size}, " for size in build.step_batch(self.case, 0)) if self.uniform else "*batch, "

    @property
    def label(self) -> str:
        """What names a step inside an f-string."""
        return "" if self.last == 0 else "step {step}: "

    def loop(self, body: list[str]) -> list[str]:
        """``body`` once for each step; it may use ``step``, and ``mode`` and ``batch`` where steps differ."""
        if self.last == 0 and self.uniform:
            return body
        head = [f"for step in range({self.last + 1}):"]
        if not self.uniform:
            rows = [
                f'("{step.mode}", {build.step_batch(self.case, index)!r}'
                + "".join(f", {_quoted(getattr(step, name))}" for name in self.habits)
                + ")"
                for index, step in enumerate(self.case.steps[: self.last + 1])
            ]
            names = ", ".join(["mode", "batch", *self.habits])
            line = f"for step, ({names}) in enumerate([{', '.join(rows)}]):"
            head = [line] if len(line) <= LINE else ["steps = [", *indented([f"{row}," for row in rows]), "]"]
            if len(line) > LINE:
                head.append(f"for step, ({names}) in enumerate(steps):")
        if self.defers:
            head = ["waiting = []", *head]
        return head + indented(body)

    @property
    def several_shapes(self) -> bool:
        """Whether the steps that are run have inputs of several shapes."""
        return len({build.step_batch(self.case, index) for index in range(self.last + 1)}) > 1


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def indented(lines: list[str]) -> list[str]:
    """The lines, one level deeper."""
    return [f"{INDENT}{line}" if line else line for line in lines]
