"""The methods that Thunder needs and torch removed."""

from __future__ import annotations

import pytest
import torch

from harness import torch_compat

NAMES = ("align_as", "align_to", "has_names", "refine_names", "rename")


def test_missing_methods_are_added_once_and_existing_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(self: torch.Tensor) -> str:
        return "own"

    torch_compat.restore_named_tensor_methods()
    for name in NAMES:
        monkeypatch.delattr(torch.Tensor, name)
    monkeypatch.setattr(torch.Tensor, "rename", own, raising=False)
    try:
        assert torch_compat.restore_named_tensor_methods() == NAMES[:4]
        assert torch_compat.restore_named_tensor_methods() == ()
        tensor = torch.ones(2)
        assert tensor.has_names() is False
        assert tensor.rename() == "own"
        with pytest.raises(NotImplementedError, match="align_to: this torch has no named tensors"):
            tensor.align_to("a")
        assert all(getattr(torch.Tensor, name).__name__ == name for name in NAMES[:4])
    finally:
        for name in NAMES[:4]:
            delattr(torch.Tensor, name)


def test_thunder_imports_with_them() -> None:
    torch_compat.restore_named_tensor_methods()
    pytest.importorskip("thunder")
