"""Installing: what is refused, what stays untouched, and what a function that is not emulated says. In subprocesses."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import transformer_engine_torch as tex

from harness import emulation

ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> str:
    """Run ``code`` in a fresh interpreter; its output, or a failure with its traceback."""
    import os

    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = run(
        """
        import sys, harness.emulation
        assert not harness.emulation.is_installed()
        assert harness.emulation.unimplemented_calls() == {}
        print([name for name in ("torch", "numpy", "transformer_engine", "thunder") if name in sys.modules])
        """
    )
    assert loaded == "[]"


def test_torch_is_untouched_and_still_compiles() -> None:
    """torch says there is no CUDA, triton stays unknown, and inductor works after TE was imported and used."""
    output = run(
        """
        import torch
        torch.set_num_threads(1)
        before = {name: getattr(torch.cuda, name) for name in ("is_available", "current_device", "Stream", "Event")}
        methods = {name: getattr(torch.Tensor, name) for name in ("is_cuda", "cuda", "to")}
        import harness.emulation.activate
        import transformer_engine.pytorch as te
        layer = te.Linear(16, 16)
        layer(torch.randn(16, 16)).sum().backward()
        assert not torch.cuda.is_available()
        assert all(getattr(torch.cuda, name) is value for name, value in before.items())
        assert all(getattr(torch.Tensor, name) is value for name, value in methods.items())
        import sys
        assert "triton" not in sys.modules and "onnx" not in sys.modules
        assert not torch.utils._triton.has_triton_package()
        import torch._inductor.config
        torch._inductor.config.cpp_cache_precompile_headers = False  # costs more than the compilation itself
        compiled = torch.compile(lambda x: torch.sin(x) + x * 2)
        x = torch.randn(8)
        torch.testing.assert_close(compiled(x), torch.sin(x) + x * 2)
        try:
            torch.zeros(1, device="cuda")
        except (AssertionError, RuntimeError) as error:
            print("no CUDA")
        """
    )
    assert output == "no CUDA"


def test_one_import_is_enough_and_takes_the_capability_from_the_environment() -> None:
    code = """
        import harness.emulation.activate
        import transformer_engine.pytorch as te
        from transformer_engine.pytorch.quantization import FP8GlobalStateManager
        print(te.get_device_compute_capability(), FP8GlobalStateManager.is_mxfp8_available()[0])
        """
    assert run(code) == "(9, 0) False"
    assert run(code, TEFUZZ_COMPUTE_CAPABILITY="10.0") == "(10, 0) True"


def test_a_malformed_capability_is_explained() -> None:
    output = run(
        """
        try:
            import harness.emulation.activate
        except RuntimeError as error:
            print(error)
        """,
        TEFUZZ_COMPUTE_CAPABILITY="ten",
    )
    assert output == "TEFUZZ_COMPUTE_CAPABILITY='ten' is not of the form MAJOR.MINOR, for example 9.0"


@pytest.mark.parametrize("late", ["transformer_engine", "transformer_engine_torch", "transformer_engine.common"])
def test_installing_after_transformer_engine_is_refused(late: str) -> None:
    output = run(
        f"""
        import sys, types
        sys.modules[{late.partition(".")[0]!r}] = types.ModuleType({late!r})
        import harness.emulation
        try:
            harness.emulation.install()
        except harness.emulation.EmulationError as error:
            print(error)
        assert not harness.emulation.is_installed()
        """
    )
    assert "is already imported" in output
    assert "harness.emulation" in output


def test_installing_again_is_harmless_and_changing_the_capability_is_refused() -> None:
    assert emulation.is_installed()
    emulation.install((9, 0))
    with pytest.raises(emulation.EmulationError, match=r"already installed with compute capability \(9, 0\)"):
        emulation.install((10, 0))


def test_a_capability_without_fp8_is_refused() -> None:
    with pytest.raises(emulation.EmulationError, match="no FP8"):
        emulation.install((8, 0))


def test_a_function_that_is_not_emulated_says_so_and_is_counted() -> None:
    before = emulation.unimplemented_calls().get("fused_attn_fwd", 0)
    with pytest.raises(NotImplementedError, match=r"fused_attn_fwd.*CPU emulation of this project does not cover"):
        tex.fused_attn_fwd(1, 2, option=3)
    assert emulation.unimplemented_calls()["fused_attn_fwd"] == before + 1
    with pytest.raises(NotImplementedError, match="CommOverlapHelper"):
        tex.CommOverlapHelper()


def test_the_extension_looks_like_a_module() -> None:
    import importlib.util

    assert importlib.util.find_spec("transformer_engine_torch") is not None
    assert Path(tex.__file__).is_file()
    with pytest.raises(AttributeError):
        tex.__no_such_dunder__  # noqa: B018


def test_enumerations_are_integers_and_pickle() -> None:
    import pickle

    assert int(tex.DType.kFloat8E5M2) == 8
    assert tex.DType.kFloat8E4M3 == 7
    assert pickle.loads(pickle.dumps(tex.DType.kBFloat16)) is tex.DType.kBFloat16
    assert len(tex.DType.__members__) == 8


def test_capability_is_what_te_sees() -> None:
    from transformer_engine.pytorch.utils import get_device_compute_capability

    assert get_device_compute_capability() == (9, 0)
    assert not torch.cuda.is_available()
