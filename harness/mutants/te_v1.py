"""Mutants of Thunder's first TE executor (v1), which calls te.Linear's autograd function."""

from __future__ import annotations

from harness.mutants.base import V1, Mutant

_V1 = "thunder.executors.transformer_engine_v1ex"

MUTANTS = (
    Mutant(
        name="v1-gradients-swapped",
        title="the gradients of input and weight are returned in TE's order",
        target=f"{_V1}:_te_functional_linear_backward_impl",
        changes=(("(grads[1], grads[0], grads[2])", "(grads[0], grads[1], grads[2])"),),
        pairs=(V1,),
        symptom="gradients of each other where the shapes fit, an exception elsewhere",
    ),
    Mutant(
        name="v1-backward-sync-first",
        title="the update of backward scales stands before the backward pass instead of after it",
        target=f"{_V1}:_insert_bwd_fp8_meta_sync",
        changes=(("bwd_idx = len(bw_extrace.bound_symbols) - 1", "bwd_idx = 0"),),
        pairs=(V1,),
        symptom="scales of gradients lag by a step",
    ),
    Mutant(
        name="v1-backward-sync-forward",
        title="at the end of backward the forward scales are updated",
        target=f"{_V1}:te_sync_fp8_meta_bwd_impl",
        changes=(("forward=False", "forward=True"),),
        pairs=(V1,),
        symptom="forward histories advance twice a step, backward ones never",
    ),
    Mutant(
        name="v1-backward-sync-missing",
        title="the update of backward scales is not put into the trace",
        target=f"{_V1}:transformer_engine_v1_bwd_fp8_meta_sync",
        changes=(("if transformer_engine_v1_ex in", "if transformer_engine_v1_ex not in"),),
        pairs=(V1,),
        symptom="output gradients are quantised with the scale 1 for ever",
    ),
    Mutant(
        name="v1-first-module-token-kept",
        title="TE's token of the first module is not taken, so TE updates backward scales by itself as well",
        target=f"{_V1}:TELinear.forward",
        changes=(("FP8GlobalStateManager.is_first_fp8_module()  # Consume", "pass  # Consume"),),
        pairs=(V1,),
        symptom="backward histories advance twice a step",
        equivalent="TE's fused update leaves a history alone whose newest amax is 0, so a second update does nothing",
    ),
    Mutant(
        name="v1-symbols-not-counted",
        title="the counter behind te_linear_N does not advance",
        target=f"{_V1}:_create_fp8_linear_bound_symbol",
        changes=(("LINEAR_CALLS_COUNTER += 1", "LINEAR_CALLS_COUNTER += 0"),),
        pairs=(V1,),
        symptom="all linears are called te_linear_0 and run the last one's module",
    ),
    Mutant(
        name="v1-recipe-option-ignored",
        title="the trace runs under the default recipe, not that of thunder.jit",
        target=f"{_V1}:_create_fp8_linear_bound_symbol",
        changes=(("fp8_recipe = get_recipe_from_options_or_default_recipe()", "fp8_recipe = _DEFAULT_RECIPE"),),
        pairs=(V1,),
        symptom="margin, format and history of the user's recipe have no effect",
    ),
    Mutant(
        name="v1-bias-lost",
        title="the bias is taken for absent",
        target=f"{_V1}:TELinear.forward",
        changes=(("use_bias = bias is not None", "use_bias = False"),),
        pairs=(V1,),
        symptom="outputs without bias",
    ),
    Mutant(
        name="v1-requires-grad-left-on",
        title="tensors keep the requires_grad that TE's forward was given",
        target=f"{_V1}:enable_grad",
        changes=(("t.requires_grad_(org_r_grad)", "t.requires_grad_(True)"),),
        pairs=(V1,),
        symptom="the caller's frozen parameters require grad after a step",
    ),
    Mutant(
        name="v1-weight-with-input-quantizer",
        title="the weight is quantised with the input's quantizer",
        target=f"{_V1}:TELinear._get_quantizers",
        changes=(("tex.FP8FwdTensors.GEMM1_WEIGHT", "tex.FP8FwdTensors.GEMM1_INPUT"),),
        pairs=(V1,),
        symptom="weights with the scale of activations",
    ),
    Mutant(
        name="v1-gradient-with-second-quantizer",
        title="the output gradient is quantised with the quantizer of the input gradient",
        target=f"{_V1}:TELinear._get_quantizers",
        changes=(("tex.FP8BwdTensors.GRAD_OUTPUT1", "tex.FP8BwdTensors.GRAD_INPUT1"),),
        pairs=(V1,),
        symptom="amax of gradients in another column",
    ),
    Mutant(
        name="v1-claims-any-weight",
        title="the checker looks at the shape of the input only",
        target=f"{_V1}:_linear_checker",
        changes=((" and check_valid_fp8_shapes(w)", ""),),
        pairs=(V1,),
        symptom="an exception for output widths that FP8 does not take",
    ),
    Mutant(
        name="v1-saved-tensors-of-default-recipe",
        title="the number of saved tensors is asked for a linear without FP8",
        target=f"{_V1}:_get_num_saved_tensors",
        changes=(("with te.fp8_autocast(fp8_recipe=fp8_recipe):", "with te.fp8_autocast(enabled=False):"),),
        pairs=(V1,),
        symptom="an exception where the numbers differ",
    ),
)
