"""The standalone program of a report: one file that shows a finding with torch, Thunder and TE alone.

A program states what is expected and what is seen, and ends with status 1 when it sees the bug and 0 when not. Its
tensors are random ones of the case's shapes and distribution, not the case's own: ``harness.report.trial`` runs it to
find out whether it shows the bug. The model's text is that of ``harness.program``.
"""

from __future__ import annotations

import re

from harness.case import Autocast, describe, walk
from harness.checks.base import Finding
from harness.checks.random_operations import random_operations
from harness.essence import seen
from harness.fixes import REVERTS
from harness.report.examinations import EXAMINATIONS
from harness.report.fused_program import FusedModuleProgram
from harness.report.jit_program import JitProgram
from harness.report.ops_program import PipelineProgram
from harness.report.pieces import LINE, left_out
from harness.report.writer import EXCEPTIONS
from harness.run import Verdict


def program_source(verdict: Verdict, finding: Finding, versions: dict[str, str], reverts: tuple[str, ...] = ()) -> str:
    """The text of the program for one finding of a verdict, which was made with ``reverts`` in force."""
    checks = {other.bucket.check for other in verdict.findings}
    case = verdict.case
    kind = FusedModuleProgram if case.fused_module is not None else PipelineProgram if case.jit is None else JitProgram
    writer: FusedModuleProgram | PipelineProgram | JitProgram = kind(case, finding, checks)
    body = writer.body()
    imports = writer.imports
    for name in ("nn", "functional as F"):
        used = name.rpartition(" ")[2]
        if any(re.search(rf"\b{used}\.", line) for line in body):
            imports.torch.add(f"from torch{'' if used == 'nn' else '.nn'} import {name}")
    if any("checkpoint(" in line for line in body):
        imports.torch.add("from torch.utils.checkpoint import checkpoint")
    setup = ['device = "cuda" if torch.cuda.is_available() else "cpu"', "torch.manual_seed(0)"]
    if reverts:
        fixes = ", ".join(f"{REVERTS[name].project}#{REVERTS[name].number}" for name in reverts)
        setup += [
            f"# The released packages have the fix {fixes}. This line undoes it; without it the status is 0.",
            f"revert_until_exit({', '.join(map(_quoted, reverts))})",
        ]
    setup.append(f"print({', '.join(f'{_quoted(name)}, version({_quoted(name)})' for name in versions)})")
    head = [_docstring(finding, versions, reverts), "", *imports.text(reverts), "", *setup, ""]
    lines = head + body
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip() + "\n"


def doubt(verdict: Verdict, finding: Finding) -> str | None:
    """Why the program for a finding proves nothing even if it sees a difference; None where it does.

    Its two sides draw random numbers in orders of their own, so results that depend on them differ anyway. So do those
    of linears in ``torch.autocast``, whose operands TE quantises as they are and Thunder casts before.
    """
    check = finding.bucket.check
    if check in EXAMINATIONS or check in EXCEPTIONS:
        return None
    if any(isinstance(layer, Autocast) for _, layer in walk(verdict.case.layers)):
        return "its two sides cast differently in torch.autocast"
    traces = [compilation.forward[0] for compilation in verdict.run.subject.compilations if compilation.forward]
    return "its two sides draw different random numbers" if any(map(random_operations, traces)) else None


def sentence(finding: Finding) -> str:
    """What is wrong, in one sentence."""
    kind = type(finding)
    # The class of a finding in a fuzz run is made for its bucket; its docstring is the bucket.
    kind = next(base for base in kind.__mro__ if base.__name__ == kind.__name__ and "/" not in (base.__doc__ or ""))
    text = (kind.__doc__ or kind.__name__).strip().splitlines()[0]
    # A first word like "TE" keeps its capitals.
    first = text[0] if text[1:2].isupper() else text[0].lower()
    return f"{finding.bucket.subject}: {first}{text[1:]}"


def _docstring(finding: Finding, versions: dict[str, str], reverts: tuple[str, ...]) -> str:
    case = finding.case
    lines = [
        sentence(finding),
        "",
        f"Expected: {finding.promise}",
        f"Seen: {seen(finding)}",
        f"Model: {describe(case.layers, case.input.features)}",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    if reverts:
        lines.append(f"Seen with a fix undone only ({', '.join(reverts)}): the released packages do not do this.")
    if ignored := left_out(case):
        lines.append(f"Of the case this program leaves out: {', '.join(ignored)}.")
    text = "\n".join(_wrapped(line) for line in lines).replace("\\", "\\\\").replace('"""', r"\"\"\"")
    # A quote before the closing ones would end the text one character early.
    return f'"""{text}\n"""'


def _wrapped(line: str) -> str:
    words, rows = line.split(), [""]
    for word in words:
        if rows[-1] and len(rows[-1]) + 1 + len(word) > LINE:
            rows.append("")
        rows[-1] += f" {word}" if rows[-1] else word
    return "\n".join(rows)


def _quoted(text: str) -> str:
    return f'"{text}"'
