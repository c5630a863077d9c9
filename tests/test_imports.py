"""Who may import whom, and what costs nothing to import."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "thunder", "transformer_engine", "transformer_engine_torch"}
OWN = {"harness", "strategies", "fuzz", "tests"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no module below {package}: the test would test nothing"
    return found


def imports(path: Path, *, outside_functions: bool = False) -> Iterator[str]:
    """Modules that a file imports, with the names of ``from`` imports; without those that only type checkers see."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if outside_functions and isinstance(node, ast.FunctionDef):
            continue
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{path}: relative imports hide who imports whom"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending += ast.iter_child_nodes(node)


def within(name: str, *allowed: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in allowed)


def test_the_reader_of_imports_sees_all_forms(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import a.b, c\nfrom d import e\n"
        "if TYPE_CHECKING:\n    import unseen\nelse:\n    import f\n"
        "def function():\n    from g.h import i\n"
    )
    assert set(imports(path)) == {"a.b", "c", "d.e", "f", "g.h.i"}
    assert set(imports(path, outside_functions=True)) == {"a.b", "c", "d.e", "f"}


@pytest.mark.parametrize("path", modules("strategies"), ids=module_name)
def test_strategies_know_hypothesis_and_cases_only(path: Path) -> None:
    allowed = ("hypothesis", "harness.case", "strategies", *sys.stdlib_module_names)
    assert [name for name in imports(path) if not within(name, *allowed)] == []


def test_cases_know_nothing_of_the_harness() -> None:
    found = set(imports(ROOT / "harness" / "case.py"))
    assert [name for name in found if within(name, *OWN, *HEAVY) and not within(name, "harness.schema")] == []
    assert [name for name in imports(ROOT / "harness" / "schema.py") if within(name, *OWN, *HEAVY)] == []
    features = set(imports(ROOT / "harness" / "features.py"))
    assert {name for name in features if within(name, *OWN, *HEAVY)} <= {
        name for name in features if within(name, "harness.case")
    }


@pytest.mark.parametrize("path", modules("harness"), ids=module_name)
def test_the_harness_does_not_know_who_uses_it(path: Path) -> None:
    # The command line draws cases for its users; nothing below it does.
    users = ("fuzz", "tests") if within(module_name(path), "harness.commands") else ("fuzz", "tests", "strategies")
    assert [name for name in imports(path) if within(name, *users)] == []


LOWER = {
    "harness/build.py": (),
    "harness/compare.py": (),
    "harness/program.py": ("harness.build",),
    "harness/rounding.py": ("harness.build", "harness.compare", "harness.subjects.float64"),
    "harness/traces.py": (),
    "harness/fp8_globals.py": (),
}


@pytest.mark.parametrize("path", LOWER)
def test_lower_rooms_do_not_import_higher_ones(path: str) -> None:
    found = {name for name in imports(ROOT / path) if within(name, "harness")}
    assert [name for name in found if not within(name, "harness.case", *LOWER[path])] == []


@pytest.mark.parametrize("path", modules("harness/checks"), ids=module_name)
def test_checks_do_not_run_anything(path: Path) -> None:
    ran_by = ("harness.run", "harness.device", "harness.pytest_plugin", "harness.emulation", "harness.fixes")
    assert [name for name in imports(path) if within(name, *ran_by)] == []


@pytest.mark.parametrize("path", modules("harness/subjects"), ids=module_name)
def test_subjects_do_not_judge(path: Path) -> None:
    judges = ("harness.run", "harness.checks", "harness.compare", "harness.rounding", "harness.emulation")
    assert [name for name in imports(path) if within(name, *judges)] == []


def test_only_the_device_decides_between_extension_and_emulation() -> None:
    # The commands report on the emulation; what runs a case must not know of it.
    users = {
        module_name(path)
        for path in [*modules("harness"), *modules("strategies")]
        if not within(module_name(path), "harness.emulation", "harness.commands")
        and any(within(name, "harness.emulation", "transformer_engine_torch") for name in imports(path))
    }
    assert users == {"harness.device"}


LIGHT = (
    "harness",
    "harness.case",
    "harness.ci",
    "harness.essence",
    "harness.features",
    "harness.device",
    "harness.fixes",
    "harness.bucket",
    "harness.campaign",
    "harness.examples",
    "harness.gpus",
    "harness.isolation",
    "harness.judge",
    "harness.known_issues",
    "harness.mutants",
    "harness.mutants.campaign",
    "harness.mutants.results",
    "harness.profiles",
    "harness.pytest_plugin",
    "harness.recorder",
    "harness.reduction.reducer",
    "harness.report.index",
    "harness.report.shrinking",
    "harness.report.sightings",
    "harness.summary",
    "harness.terminal",
    "strategies",
)


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_nothing_heavy_themselves(module: str) -> None:
    path = Path(str(importlib.import_module(module).__file__))
    assert [name for name in imports(path, outside_functions=True) if within(name, *HEAVY)] == []


def test_light_modules_load_nothing_heavy() -> None:
    script = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = sorted({HEAVY!r} & set(sys.modules))\n"
        "    if heavy: sys.exit(f'{name} loads {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
