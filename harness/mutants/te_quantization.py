"""Mutants of Transformer Engine's quantization state, its autocast and te.Linear."""

from __future__ import annotations

from harness.mutants.base import FUSER, V1, V2, Mutant

_STATE = "transformer_engine.pytorch.quantization"
_MANAGER = f"{_STATE}:FP8GlobalStateManager"
_LINEAR = "transformer_engine.pytorch.module.linear"

MUTANTS = (
    Mutant(
        name="state-both-passes-updated",
        title="the update of one pass advances the histories of both",
        target=f"{_MANAGER}.reduce_and_update_fp8_tensors",
        changes=(("            if fwd_update != forward:\n                continue\n", ""),),
        pairs=(V2, V1),
        symptom="histories advance twice a step",
    ),
    Mutant(
        name="state-backward-scale-of-forward-format",
        title="backward scales use the largest value of the forward format",
        target=f"{_MANAGER}.reduce_and_update_fp8_tensors",
        changes=(("scale, get_fp8_max(recipe, forward), recipe", "scale, get_fp8_max(recipe, True), recipe"),),
        pairs=(V2,),
        symptom="gradients use a 128th of the range of E5M2",
    ),
    Mutant(
        name="state-fused-update-of-forward-format",
        title="the fused update always uses the forward format",
        target=f"{_MANAGER}.reduce_and_update_fp8_tensors",
        changes=(("get_fp8_te_dtype(recipe, forward)", "get_fp8_te_dtype(recipe, True)"),),
        pairs=(V1, FUSER),
        symptom="gradients use a 128th of the range of E5M2",
    ),
    Mutant(
        name="state-fused-update-without-margin",
        title="the fused update ignores the recipe's margin",
        target=f"{_MANAGER}.reduce_and_update_fp8_tensors",
        changes=(("                    recipe.margin,\n", "                    0,\n"),),
        pairs=(V1, FUSER),
        symptom="scales too large by a power of two",
    ),
    Mutant(
        name="state-registered-every-step",
        title="a module adds its tensors to the global buffers in every step",
        target=f"{_MANAGER}.add_fp8_tensors_to_global_buffer",
        changes=(("        if index_in_buffer in fp8_meta:\n            return\n", ""),),
        pairs=(V1, V2),
        symptom="histories advance as often as the module has run",
    ),
    Mutant(
        name="state-exit-updates-backward",
        title="leaving an autocast region updates the scales of the other pass",
        target=f"{_MANAGER}.autocast_exit",
        changes=(
            ("cls.reduce_and_update_fp8_tensors(forward=True)", "cls.reduce_and_update_fp8_tensors(forward=False)"),
        ),
        pairs=(V2, V1),
        symptom="forward scales stay 1, backward histories advance twice",
    ),
    Mutant(
        name="state-margin-multiplied",
        title="the margin multiplies the scale instead of dividing it",
        target=f"{_STATE}:_default_sf_compute",
        changes=(("sf = (fp8_max / amax) / (2**margin)", "sf = (fp8_max / amax) * (2**margin)"),),
        pairs=(V2,),
        symptom="values saturate where a margin was asked for",
    ),
    Mutant(
        name="state-scale-of-zeros",
        title="a tensor of zeros gets the largest scale instead of keeping its own",
        target=f"{_STATE}:_default_sf_compute",
        changes=(("    sf = torch.where(amax > 0.0, sf, scale)\n", ""),),
        pairs=(V2,),
        symptom="after a step of zeros everything saturates",
    ),
    Mutant(
        name="state-shared-amax",
        title="all quantizers of a state write their amax into the first column",
        target=f"{_STATE}:DelayedScalingRecipeState.make_quantizers",
        changes=(("self.amax_history[0][i]", "self.amax_history[0][0]"),),
        pairs=(V2, V1),
        symptom="weights and activations share a scale",
    ),
    Mutant(
        name="state-shared-scale",
        title="all quantizers of a state quantise with the first scale",
        target=f"{_STATE}:DelayedScalingRecipeState.make_quantizers",
        changes=(("Float8Quantizer(self.scale[i],", "Float8Quantizer(self.scale[0],"),),
        pairs=(V2, V1),
        symptom="weights are quantised with the scale of activations; the state itself looks right",
    ),
    Mutant(
        name="state-gradients-in-e4m3",
        title="the state of the backward pass has the forward format",
        target=f"{_STATE}:DelayedScalingRecipeState.__init__",
        changes=(('get_fp8_te_dtype(recipe, mode == "forward")', "get_fp8_te_dtype(recipe, True)"),),
        pairs=(V2, V1),
        symptom="gradients in E4M3 under a hybrid recipe",
    ),
    Mutant(
        name="linear-module-bias-lost",
        title="te.Linear does not pass its bias to the autograd function",
        target=f"{_LINEAR}:Linear.forward",
        changes=(
            (
                "bias_tensor if (self.apply_bias and not self.gemm_bias_unfused_add) else None",
                "None if (self.apply_bias and not self.gemm_bias_unfused_add) else bias_tensor",
            ),
        ),
        pairs=(V1,),
        symptom="outputs without bias",
    ),
    Mutant(
        name="linear-module-gradient-quantizer",
        title="te.Linear quantises output gradients with the quantizer of input gradients",
        target=f"{_LINEAR}:Linear._get_quantizers",
        changes=(("tex.FP8BwdTensors.GRAD_OUTPUT1", "tex.FP8BwdTensors.GRAD_INPUT1"),),
        pairs=(V1,),
        symptom="amax of gradients in another column",
    ),
    Mutant(
        name="linear-backward-scales-not-updated",
        title="te.Linear's backward does not update backward scales",
        target=f"{_LINEAR}:_Linear.backward",
        changes=(("if ctx.reduce_and_update_bwd_fp8_tensors and not is_graph_capturing():", "if False:"),),
        pairs=(V1,),
        symptom="output gradients are quantised with the scale 1 for ever",
    ),
    Mutant(
        name="linear-input-gradient-from-weight-flag",
        title="te.Linear computes an input gradient only if the weight needs one",
        target=f"{_LINEAR}:_Linear.forward",
        changes=(("ctx.requires_dgrad = inp.requires_grad", "ctx.requires_dgrad = weight.requires_grad"),),
        pairs=(V1,),
        symptom="no input gradient behind a frozen weight",
    ),
    Mutant(
        name="linear-weight-without-transpose",
        title="te.Linear prepares the weight's transpose only if the weight needs a gradient",
        target=f"{_LINEAR}:_Linear.forward",
        changes=(
            (
                "columnwise_usage = is_grad_enabled and inp.requires_grad",
                "columnwise_usage = is_grad_enabled and weight.requires_grad",
            ),
        ),
        pairs=(V1,),
        symptom="an exception behind a frozen weight",
        equivalent="where the transpose is missing and needed, update_usage makes it a few lines later",
    ),
    Mutant(
        name="current-scaling-amax-floor",
        title="current scaling takes every amax below 1 for 1",
        target=f"{_STATE}:Float8CurrentScalingRecipeState.make_quantizers",
        changes=(
            (
                "force_pow_2_scales=self.recipe.use_power_2_scales",
                "force_pow_2_scales=self.recipe.use_power_2_scales, amax_epsilon=1.0",
            ),
        ),
        pairs=(FUSER,),
        symptom="small tensors use a part of the range of FP8",
    ),
    Mutant(
        name="autocast-key-by-object",
        title="TE's table of autocast arguments is keyed by the recipe object, not by what it says",
        target=f"{_STATE}:FP8GlobalStateManager.get_unique_autocast_key",
        changes=(("{str(recipe)}:", "{id(recipe)}:"),),
        pairs=(V2,),
        symptom="every new recipe object stays in memory for ever",
    ),
)
