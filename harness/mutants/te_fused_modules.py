"""Mutants of te.LayerNormLinear and te.LayerNormMLP, whose backward passes are written by hand."""

from __future__ import annotations

from harness.mutants.base import FUSED_MODULE, Mutant

_LINEAR = "transformer_engine.pytorch.module.layernorm_linear:_LayerNormLinear"
_MLP = "transformer_engine.pytorch.module.layernorm_mlp:_LayerNormMLP"

MUTANTS = (
    Mutant(
        name="layernorm-linear-returned-norm-without-gradient",
        title="the gradient that comes through the returned norm is left out",
        target=f"{_LINEAR}.backward",
        changes=(("                dgrad = dgrad + grad_outputs[1].view_as(dgrad)\n", "                pass\n"),),
        pairs=(FUSED_MODULE,),
        symptom="wrong gradients before a norm whose output is used twice",
    ),
    Mutant(
        name="layernorm-linear-weight-never-updated",
        title="the cast weight is kept for all microbatches but the very first",
        target=f"{_LINEAR}.forward",
        changes=(
            (
                "update_workspace = is_first_microbatch is None or is_first_microbatch",
                "update_workspace = is_first_microbatch is None",
            ),
        ),
        pairs=(FUSED_MODULE,),
        symptom="FP8 training with gradient accumulation computes with the first weights for ever",
    ),
    Mutant(
        name="layernorm-mlp-returned-norm-without-gradient",
        title="the gradient that comes through the returned norm is left out",
        target=f"{_MLP}.backward",
        changes=(("                dgrad = dgrad + grad_outputs[1].view_as(dgrad)\n", "                pass\n"),),
        pairs=(FUSED_MODULE,),
        symptom="wrong gradients before a norm whose output is used twice",
    ),
)
