"""Mutants of Transformer Engine's operations and of the fuser that runs pipelines of them."""

from __future__ import annotations

from harness.mutants.base import FUSER, V2, Mutant

_FUSER = "transformer_engine.pytorch.ops.fuser"
_BASIC = "transformer_engine.pytorch.ops.basic"
_FUSED = "transformer_engine.pytorch.ops.fused"
_OP = "transformer_engine.pytorch.ops.op"
_FUNCTION = f"{_FUSER}:_OperationFuserAutogradFunction"

MUTANTS = (
    Mutant(
        name="fuser-last-operation-requiring-backward",
        title="backward starts at the last operation that needs it, not the first",
        target=f"{_FUSER}:OperationFuser.maybe_fuse_ops",
        changes=(
            ("first_op_requiring_backward = op_idx\n                    break", "first_op_requiring_backward = op_idx"),
        ),
        pairs=(FUSER, V2),
        symptom="no gradients for all parameters but the last, if the input needs none",
    ),
    Mutant(
        name="fuser-first-operation-without-backward",
        title="off by one: the first operation that needs a backward pass gets none",
        target=f"{_FUNCTION}.forward",
        changes=(
            ("basic_op_ctxs[idx].requires_grad = idx >= fuser", "basic_op_ctxs[idx].requires_grad = idx > fuser"),
        ),
        pairs=(FUSER, V2),
        symptom="no gradient for the input and the first parameters",
    ),
    Mutant(
        name="fuser-parameter-gradients-reversed",
        title="gradients of parameters are collected in the order of the backward pass",
        target=f"{_FUNCTION}.backward",
        changes=(
            (
                "for idx, dparams in enumerate(grad_params):\n",
                "for idx, dparams in enumerate(reversed(grad_params)):\n",
            ),
        ),
        pairs=(FUSER, V2),
        symptom="an exception, or gradients of another operation",
    ),
    Mutant(
        name="fuser-backward-scales-not-updated",
        title="no pipeline takes itself for the first module, so nobody updates backward scales",
        target=f"{_FUNCTION}.forward",
        changes=(("is_first_module = FP8GlobalStateManager.is_first_fp8_module()", "is_first_module = False"),),
        pairs=(V2, FUSER),
        symptom="output gradients are quantised with the scale 1 for ever",
    ),
    Mutant(
        name="fuser-next-quantizer-of-this",
        title="an operation may write its output with its own input quantizer, not the next operation's",
        target=f"{_FUNCTION}.forward",
        changes=(("next_op_idx = basic_op_idxs[-1] + 1", "next_op_idx = basic_op_idxs[-1]"),),
        pairs=(FUSER, V2),
        symptom="activations with a wrong scale, outputs that are quantised",
    ),
    Mutant(
        name="ops-backward-state-for-forward",
        title="both recipe states of an operation are made for the forward pass",
        target=f"{_OP}:BasicOperation.reset_recipe_state",
        changes=(("                    mode=mode,\n", '                    mode="forward",\n'),),
        pairs=(V2, FUSER),
        symptom="gradients in E4M3 under a hybrid recipe",
    ),
    Mutant(
        name="ops-state-made-anew",
        title="an operation's recipe state is made anew whenever the fuser looks at it",
        target=f"{_FUSER}:OperationFuser.maybe_fuse_ops",
        changes=(
            ("        if not need_reset:\n            return\n", ""),
            (
                "            op.reset_recipe_state(recipe=recipe)\n",
                "            op.reset_recipe_state(recipe=None)\n            op.reset_recipe_state(recipe=recipe)\n",
            ),
        ),
        pairs=(V2, FUSER),
        symptom="no delayed scaling: the scale is 1 in every step",
    ),
    Mutant(
        name="ops-linear-weight-with-input-quantizer",
        title="te.ops.BasicLinear quantises its weight with the input's quantizer",
        target=f"{_BASIC}.basic_linear:BasicLinear.op_forward",
        changes=(
            (
                'weight_quantizer = self.get_quantizer("forward", 1)',
                'weight_quantizer = self.get_quantizer("forward", 0)',
            ),
        ),
        pairs=(V2, FUSER),
        symptom="weights with the scale of activations",
    ),
    Mutant(
        name="ops-linear-bias-not-fused",
        title="the fused linear with bias computes without it",
        target=f"{_FUSED}.forward_linear_bias_activation:ForwardLinearBiasActivation.fuser_forward",
        changes=(("            bias = bias_op.bias\n", "            bias = None\n"),),
        pairs=(V2, FUSER),
        symptom="outputs without bias in 16 bits",
    ),
    Mutant(
        name="ops-linear-fused-without-input-gradient",
        title="the fused linear with bias takes the weight's need of a gradient for the input's",
        target=f"{_FUSED}.forward_linear_bias_activation:ForwardLinearBiasActivation.fuser_forward",
        changes=(
            (
                "input_requires_grad = linear_op_ctx.requires_grad\n",
                "input_requires_grad = linear_op_ctx.requires_grad and linear_op.weight.requires_grad\n",
            ),
        ),
        pairs=(V2, FUSER),
        symptom="no input gradient behind a frozen weight in 16 bits",
    ),
    Mutant(
        name="ops-linear-weight-gradient-needs-input",
        title="te.ops.BasicLinear computes no weight gradient when its input needs none",
        target=f"{_BASIC}.basic_linear:BasicLinear.op_forward",
        changes=(
            (
                "weight_requires_grad = ctx.requires_grad and self.weight.requires_grad",
                "weight_requires_grad = input_.requires_grad and self.weight.requires_grad",
            ),
        ),
        pairs=(V2, FUSER),
        symptom="no weight gradient in the first layer",
    ),
    Mutant(
        name="ops-linear-gradient-halved",
        title="the functional backward of te.ops.BasicLinear halves its gradient where there is no FP8",
        target=f"{_BASIC}.basic_linear:BasicLinear._functional_backward",
        changes=(
            (
                "dy_local = maybe_dequantize(dy_local, dtype)\n\n            if with_dy",
                "dy_local = maybe_dequantize(dy_local, dtype) / 2\n\n            if with_dy",
            ),
        ),
        pairs=(FUSER,),
        symptom="half of every gradient without FP8",
    ),
    Mutant(
        name="ops-bias-gradient-first-dimension",
        title="te.ops.Bias sums its gradient over the first dimension only",
        target=f"{_BASIC}.bias:Bias.op_backward",
        changes=(("db = dy.sum(tuple(range(dy.dim() - 1)))", "db = dy.sum(0)"),),
        pairs=(FUSER,),
        symptom="wrong bias gradients for inputs of rank 3 and 4 without FP8",
        equivalent="torch's autograd sums a gradient over the leading dimensions that its parameter does not have",
    ),
    Mutant(
        name="ops-layer-norm-gradients-swapped",
        title="te.ops.LayerNorm returns the gradients of weight and bias in the wrong order",
        target=f"{_BASIC}.layer_norm:LayerNorm.op_backward",
        changes=(("(grad_weight, grad_bias)", "(grad_bias, grad_weight)"),),
        pairs=(FUSER,),
        symptom="gradients of each other",
    ),
    Mutant(
        name="ops-rms-norm-gamma-not-centred",
        title="te.ops.RMSNorm forgets zero_centered_gamma in forward",
        target=f"{_BASIC}.rmsnorm:RMSNorm.op_forward",
        changes=(("            self.zero_centered_gamma,\n", "            False,\n"),),
        pairs=(FUSER,),
        symptom="outputs scaled by weight instead of 1 + weight",
    ),
    Mutant(
        name="ops-layer-norm-gamma-not-centred-in-backward",
        title="te.ops.LayerNorm forgets zero_centered_gamma in backward",
        target=f"{_BASIC}.layer_norm:LayerNorm.op_backward",
        changes=(("            self.zero_centered_gamma,\n", "            False,\n"),),
        pairs=(FUSER,),
        symptom="input gradients scaled by weight instead of 1 + weight",
    ),
    Mutant(
        name="ops-swiglu-is-geglu-in-backward",
        title="te.ops.SwiGLU uses GEGLU's derivative",
        target=f"{_BASIC}.activation:SwiGLU._activation_backward_impl",
        changes=(("tex.dswiglu", "tex.dgeglu"),),
        pairs=(FUSER,),
        symptom="gradients of gated activations",
    ),
    Mutant(
        name="ops-fused-bias-gradient-of-output",
        title="the fused backward of activation and bias sums the gradient in front of the activation, not behind it",
        target=f"{_FUSED}.backward_activation_bias:BackwardActivationBias.fuser_backward",
        changes=(
            ("return dx, [(), (db,)], [(), ()]", "return dx, [(), (dy.reshape(-1, dy.shape[-1]).sum(0),)], [(), ()]"),
        ),
        pairs=(V2,),
        symptom="bias gradients in front of ReLU and GELU",
    ),
    Mutant(
        name="ops-quantised-with-grad-only",
        title="te.ops.BasicLinear computes in FP8 only where a gradient is needed",
        target=f"{_BASIC}.basic_linear:BasicLinear.op_forward",
        changes=(
            (
                "with_quantized_compute = FP8GlobalStateManager.is_fp8_enabled()",
                "with_quantized_compute = FP8GlobalStateManager.is_fp8_enabled() and ctx.requires_grad",
            ),
        ),
        pairs=(FUSER,),
        symptom="evaluation in high precision, silently",
    ),
    Mutant(
        name="ops-frozen-weight-shares-quantizer",
        title="te.ops.BasicLinear quantises its input with the quantizer of the weight where the weight is frozen",
        target=f"{_BASIC}.basic_linear:BasicLinear.op_forward",
        changes=(
            (
                'input_quantizer = self.get_quantizer("forward", 0)',
                'input_quantizer = self.get_quantizer("forward", 0 if self.weight.requires_grad else 1)',
            ),
        ),
        pairs=(FUSER,),
        symptom="freezing a weight changes outputs and other gradients",
    ),
)
