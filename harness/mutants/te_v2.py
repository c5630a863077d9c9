"""Mutants of Thunder's functional TE executor (v2): its gradient rule, operators, checker and transforms."""

from __future__ import annotations

from harness.mutants.base import V2, Mutant

_V2 = "thunder.executors.transformer_engineex_impl"

MUTANTS = (
    Mutant(
        name="v2-quantizers-swapped",
        title="the activation is quantised with the weight's quantizer and the weight with the activation's",
        target=f"{_V2}:_te_linear_grad_transform",
        changes=(
            (
                "_te_linear_fwd(a, w, bias, input_quantizer, weight_quantizer)",
                "_te_linear_fwd(a, w, bias, weight_quantizer, input_quantizer)",
            ),
        ),
        pairs=(V2,),
        symptom="amax histories of each other",
    ),
    Mutant(
        name="v2-gradients-in-e4m3",
        title="the backward state is made for the forward pass",
        target=f"{_V2}:_te_linear_grad_transform",
        changes=(('_get_te_fp8_state(recipe, "backward", 1)', '_get_te_fp8_state(recipe, "forward", 1)'),),
        pairs=(V2,),
        symptom="gradients in E4M3 under a hybrid recipe",
    ),
    Mutant(
        name="v2-bias-gradient-first-dimension",
        title="the bias gradient is summed over the first dimension only",
        target=f"{_V2}:_te_linear_grad_transform",
        changes=(("tuple(range(grad_out.ndim - 1))", "0"),),
        pairs=(V2,),
        symptom="wrong bias gradients for inputs of rank 3 and 4",
    ),
    Mutant(
        name="v2-gradient-with-input-quantizer",
        title="the output gradient is quantised with the input's quantizer",
        target=f"{_V2}:_linear_bwd_impl",
        changes=(("grad_output_quantizer=grad_output_quantizer", "grad_output_quantizer=input_quantizer"),),
        pairs=(V2,),
        symptom="gradients with the scale of activations, and their amax in the wrong history",
    ),
    Mutant(
        name="v2-bias-lost",
        title="the forward operator does not pass the bias on",
        target=f"{_V2}:_linear_fwd_impl",
        changes=(("bias=bias", "bias=None"),),
        pairs=(V2,),
        symptom="outputs without bias, right gradients",
    ),
    Mutant(
        name="v2-backward-scales-not-updated",
        title="scales are updated for the forward pass only",
        target=f"{_V2}:_te_fp8_amax_and_scale_update_impl",
        changes=(("if recipe.delayed():", 'if recipe.delayed() and state.mode == "forward":'),),
        pairs=(V2,),
        symptom="output gradients are quantised with the scale 1 for ever",
    ),
    Mutant(
        name="v2-backward-scales-for-e4m3",
        title="backward scales use the largest value of the forward format",
        target=f"{_V2}:_te_fp8_amax_and_scale_update_impl",
        changes=(('get_fp8_max(recipe, state.mode == "forward")', "get_fp8_max(recipe, True)"),),
        pairs=(V2,),
        symptom="gradients use a 128th of the range of E5M2",
    ),
    Mutant(
        name="v2-state-forgotten",
        title="the FP8 state is made anew in every step",
        target=f"{_V2}:TERecipeState.__call__",
        changes=(
            ("if self.state and self.parent_recipe is recipe:", "if self.state and self.parent_recipe is self.state:"),
        ),
        pairs=(V2,),
        symptom="no delayed scaling: the scale is 1 in every step",
    ),
    Mutant(
        name="v2-quantizers-of-old-state",
        title="quantizers are kept when the recipe state is a new one",
        target=f"{_V2}:TEQuantizerState.__call__",
        changes=(("if self.quantizers and self.parent_recipe_state is recipe_state:", "if self.quantizers:"),),
        pairs=(V2,),
        symptom="with a new recipe object in each step the amax goes into a state that nobody reads",
    ),
    Mutant(
        name="v2-claims-any-weight",
        title="the checker looks at the shape of the input only",
        target=f"{_V2}:_linear_checker",
        changes=((" and check_valid_fp8_shapes(w)", ""),),
        pairs=(V2,),
        symptom="an exception for output widths that FP8 does not take",
    ),
    Mutant(
        name="v2-checker-first-dimension",
        title="the checker looks at the first dimension of the input instead of all rows",
        target=f"{_V2}:_linear_checker",
        changes=(("x.view((-1, shape[-1]))", "x.view((shape[0], -1))"),),
        pairs=(V2,),
        symptom="inputs of rank 3 run without FP8",
    ),
    Mutant(
        name="v2-transform-keeps-state",
        title="the transform is not reset after the backward trace",
        target=f"{_V2}:TransformerEngineTransform.transform_trace_post_optimization",
        changes=(
            ("            # Reset transform after going through forward and backward\n            self.reset()\n", ""),
        ),
        pairs=(V2,),
        symptom="an exception at the second shape",
    ),
    Mutant(
        name="v2-recipe-not-saved",
        title="the recipe is not saved for backward",
        target=f"{_V2}:TransformerEngineTransform.transform_trace_post_optimization",
        changes=(("                self.fp8_recipe.output,\n            )", "            )"),),
        pairs=(V2,),
        symptom="backward reads a recipe that nothing defines",
        equivalent="what backward does with the recipe has put it among the saved values already",
    ),
    Mutant(
        name="v2-saved-twice",
        title="what several linears save for backward is saved several times",
        target=f"{_V2}:TransformerEngineTransform.transform_trace_post_optimization",
        changes=(("list(dict.fromkeys(Variable(x) for x in env))", "[Variable(x) for x in env]"),),
        pairs=(V2,),
        symptom="an exception, or more memory",
        equivalent="one name is unpacked several times, each time to the same object",
    ),
    Mutant(
        name="v2-recomputed-with-new-scales",
        title="of a recomputed linear's two scale updates the first is kept, not the last",
        target=f"{_V2}:_te_activation_checkpointing_transform",
        changes=(
            ("for bsym in reversed(new_bsyms):", "for bsym in new_bsyms:"),
            ("for bsym in reversed(reversed_bsyms)]", "for bsym in reversed_bsyms]"),
        ),
        pairs=(V2,),
        symptom="backward recomputes with the scales of the next step",
    ),
    Mutant(
        name="v2-recomputed-updates-twice",
        title="a recomputed linear updates its scales in forward and in backward",
        target=f"{_V2}:_te_activation_checkpointing_transform",
        changes=(
            ('if all(variableify(state) in seen_updated_states for state in bsym.kwargs["states"]):', "if False:"),
        ),
        pairs=(V2,),
        symptom="histories advance twice a step",
    ),
    Mutant(
        name="v2-recomputed-asks-for-state",
        title="calls for the FP8 state of a recomputed linear are not merged",
        target=f"{_V2}:_te_activation_checkpointing_transform",
        changes=(('if "get_te_fp8_state" in bsym.sym.name:', "if False:"),),
        pairs=(V2,),
        symptom="the state's symbol in forward and backward",
    ),
)
