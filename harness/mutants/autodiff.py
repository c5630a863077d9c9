"""Mutants of Thunder's differentiation: gradient rules, the grad transform, the split, the pairs of ``vjp_utils``."""

from __future__ import annotations

from harness.mutants.base import TORCH, V1, V2, Mutant

_RULES = "thunder.core.transforms"
_AUTODIFF = "thunder.transforms.autodiff"
_VJP = "thunder.core.vjp_utils"

MUTANTS = (
    Mutant(
        name="grad-var-mean-without-mean",
        title="the gradient of var_mean leaves out what comes through the mean",
        target=f"{_RULES}:_var_mean_prim_grad",
        changes=(("put_grad(a, mean_grad + var_grad)", "put_grad(a, var_grad)"),),
        pairs=(TORCH,),
        symptom="input gradients of LayerNorm",
    ),
    Mutant(
        name="grad-rsqrt-sign",
        title="the gradient of rsqrt has the wrong sign",
        target=f"{_RULES}:_rsqrt_prim_grad",
        changes=(("-0.5 * g * fwd**3.0", "0.5 * g * fwd**3.0"),),
        pairs=(TORCH,),
        symptom="input gradients of the norms",
    ),
    Mutant(
        name="grad-tanh-not-squared",
        title="the gradient of tanh uses 1 - y in place of 1 - y^2",
        target=f"{_RULES}:_tanh_prim_grad",
        changes=(("g * (1 - fwd * fwd)", "g * (1 - fwd)"),),
        pairs=(TORCH,),
        symptom="gradients of the tanh form of GELU",
    ),
    Mutant(
        name="grad-erf-not-squared",
        title="the gradient of erf has exp(-|x|) in place of exp(-x^2)",
        target=f"{_RULES}:_erf_prim_grad",
        changes=(("ltorch.exp(-(a**2))", "ltorch.exp(-abs(a))"),),
        pairs=(TORCH,),
        symptom="gradients of the erf form of GELU",
    ),
    Mutant(
        name="grad-silu-product-rule",
        title="the gradient of silu has a wrong sign in its second term",
        target=f"{_RULES}:_silu_grad",
        changes=(("(1 + a * (1 - sigmoid))", "(1 - a * (1 - sigmoid))"),),
        pairs=(TORCH,),
        symptom="gradients of silu and swiglu",
    ),
    Mutant(
        name="grad-slice-padding-swapped",
        title="the gradient of a slice is padded at the wrong end",
        target=f"{_RULES}:_slice_prim_grad",
        changes=(
            (
                "padding = tuple(zip(start_indices, np.subtract(a.shape, end_indices), (0,) * len(start_indices)))",
                "padding = tuple(zip(np.subtract(a.shape, end_indices), start_indices, (0,) * len(start_indices)))",
            ),
        ),
        pairs=(TORCH,),
        symptom="gated activations give each half the gradient of the other",
    ),
    Mutant(
        name="grad-linear-bias-first-dimension",
        title="the bias gradient of a linear is summed over the first dimension only",
        target=f"{_RULES}:_linear_prim_grad",
        changes=(("ltorch.sum(g, tuple(range(g.ndim - 1)))", "ltorch.sum(g, 0)"),),
        pairs=(TORCH,),
        symptom="wrong bias gradients for inputs of rank 3 and 4, right ones for rank 2",
    ),
    Mutant(
        name="grad-linear-weight-batch-lost",
        title="the weight gradient of a linear takes the input transposed instead of flattened",
        target=f"{_RULES}:_linear_prim_grad",
        changes=(("a.reshape(-1, a.shape[-1]))", "a.transpose(0, -2).reshape(-1, a.shape[-1]))"),),
        pairs=(TORCH,),
        symptom="wrong weight gradients for inputs of rank 3 and 4",
    ),
    Mutant(
        name="grad-broadcast-keeps-unit-dimensions",
        title="the gradient of a broadcast does not sum over dimensions of size 1",
        target=f"{_RULES}:_broadcast_in_dim_prim_grad",
        changes=(("if i not in unit_dims)\n", "if True)\n"),),
        pairs=(TORCH,),
        symptom="an exception, or gradients of the norms",
    ),
    Mutant(
        name="grad-mul-one-operand",
        title="the gradient of a product uses its first operand for both",
        target=f"{_RULES}:_mul_prim_grad",
        changes=(("a_grad = b * g", "a_grad = a * g"),),
        pairs=(TORCH,),
        symptom="gradients of norms and gated activations",
    ),
    Mutant(
        name="autodiff-gradient-overwritten",
        title="a second gradient of one value replaces the first instead of being added",
        target=f"{_AUTODIFF}:grad_transform_on_trace",
        changes=(("ltorch.add, current_grad, new_grad, tags", "lambda old, new: new, current_grad, new_grad, tags"),),
        pairs=(V2, TORCH),
        symptom="gradients of residuals and of everything that is used twice",
    ),
    Mutant(
        name="autodiff-backward-untagged",
        title="what only backward needs is not tagged as backward",
        target=f"{_AUTODIFF}:grad_transform_on_trace",
        changes=(
            (
                "continue\n                    nbsym.tags.add(BoundSymbolTag.BACKWARD)\n",
                "continue\n",
            ),
        ),
        pairs=(V2, TORCH),
        symptom="checkpointed regions: names defined twice, or an exception",
    ),
    Mutant(
        name="autodiff-recomputation-unordered",
        title="recomputed symbols are inserted in the order of discovery (Thunder's #2317 undone)",
        target=f"{_AUTODIFF}:grad_transform_on_trace",
        changes=(
            (
                "ready = False\n                            break",
                "break",
            ),
        ),
        pairs=(V2, TORCH),
        symptom="backward uses a recomputed value before it is defined",
    ),
    Mutant(
        name="autodiff-recomputation-twice",
        title="a value that two backward symbols need is recomputed for each",
        target=f"{_AUTODIFF}:grad_transform_on_trace",
        changes=(("if name in self.already_processed_recomputations:", "if False:"),),
        pairs=(V2, TORCH),
        symptom="names defined twice, or an exception",
    ),
    Mutant(
        name="autodiff-recomputed-under-old-name",
        title="backward still reads the forward's value of what it recomputed",
        target=f"{_AUTODIFF}:grad_transform_on_trace",
        changes=(
            (
                "self.add_to_swap_map(output, new)\n",
                "pass\n",
            ),
        ),
        pairs=(V2, TORCH),
        symptom="names of forward in backward",
    ),
    Mutant(
        name="autodiff-checkpoint-not-recomputed",
        title="the decomposition of a checkpointed layer loses the tag that says to recompute it",
        target=f"{_AUTODIFF}:_should_recompute_bsym_in_backward",
        changes=(("BoundSymbolTag.RECOMPUTE_IN_BACKWARD in bsym.tags or any(", "any("),),
        pairs=(TORCH,),
        symptom="checkpointed regions save what they should recompute: more memory, right numbers",
    ),
    Mutant(
        name="split-saved-reversed",
        title="the forward trace returns its saved tensors in another order than the backward trace unpacks",
        target=f"{_AUTODIFF}:split_into_forward_and_backward",
        changes=(
            (
                "prims.python_return(fw_output_dict, (saved_for_backward_tensors, ",
                "prims.python_return(fw_output_dict, (saved_for_backward_tensors[::-1], ",
            ),
        ),
        pairs=(TORCH, V2, V1),
        symptom="an exception, or wrong gradients where the shapes fit",
    ),
    Mutant(
        name="split-saves-arguments",
        title="all tensors that forward is given are saved for backward, needed or not",
        target=f"{_AUTODIFF}:split_into_forward_and_backward",
        changes=(
            (
                "    saved_for_backward = {}\n",
                "    saved_for_backward = {a.name: a for a in return_bsym.args[0]['flat_args']}\n",
            ),
        ),
        pairs=(TORCH, V2, V1),
        symptom="more memory from forward to backward, right numbers",
    ),
    Mutant(
        name="vjp-cache-flag-ignored",
        title="pairs of forward and backward are cached for stateful rules too (Thunder's #82 undone)",
        target=f"{_VJP}:make_aug_forward_and_backward",
        changes=((' and not getattr(joint_forward_backward, "_disable_caching", False):', ":"),),
        pairs=(V2, V1),
        symptom="under the entry `grad` two equal linears share one FP8 state",
    ),
    Mutant(
        name="vjp-cache-key-first-argument",
        title="pairs of forward and backward are cached by the first argument only",
        target=f"{_VJP}:make_aug_forward_and_backward",
        changes=(("_make_cache_key(bsym.args, bsym.kwargs)", "_make_cache_key(bsym.args[:1], {})"),),
        pairs=(TORCH,),
        symptom="under the entry `grad` an operation is differentiated as another one of its kind",
    ),
    Mutant(
        name="vjp-cotangents-overwritten",
        title="a second cotangent of one value replaces the first instead of being added",
        target=f"{_RULES}:backward_pass",
        changes=(("clang.add(env[v.name], val) if env[v.name] is not None else val", "val"),),
        pairs=(TORCH, V2),
        symptom="under the entry `grad` gradients of residuals and of everything that is used twice",
    ),
)
