"""Mutants of what Thunder does around differentiation: passes over traces, its cache, the tie to torch's autograd."""

from __future__ import annotations

from harness.mutants.base import TORCH, V2, Mutant

_COMMON = "thunder.core.transform_common"
_PASSES = "thunder.executors.passes"
_AUTOGRAD = "thunder.executors.torch_autograd"

MUTANTS = (
    Mutant(
        name="cse-forgets-backward",
        title="a backward symbol counts as equal to the forward one (the BACKWARD tag is not part of the key)",
        target="thunder.core.symbol:BoundSymbol.rhs",
        changes=(("has_tags(self, {BoundSymbolTag.BACKWARD})", "False"),),
        pairs=(V2,),
        symptom="backward reads what only forward computed, in checkpointed regions",
    ),
    Mutant(
        name="cse-keeps-redundant-inputs",
        title="users of a removed duplicate are not redirected",
        target=f"{_COMMON}:cse_single_bsym",
        changes=(("skip_inputs=False", "skip_inputs=True"),),
        pairs=(V2,),
        symptom="two linears: the second one's recipe is not defined",
    ),
    Mutant(
        name="cse-maps-to-newest",
        title="of two equal symbols the map keeps the second one's name, which is the one that was removed",
        target=f"{_COMMON}:cse_single_bsym",
        changes=(("redundant_map[vsrc] = dst", "redundant_map[vdst] = src"),),
        pairs=(V2,),
        symptom="a name that nothing defines",
    ),
    Mutant(
        name="cse-keeps-parts",
        title="users of a removed duplicate are redirected, the parts of a composite user are not",
        target=f"{_COMMON}:cse_single_bsym",
        changes=(("skip_output=True,\n", "skip_output=True,\n        skip_subsymbols=True,\n"),),
        pairs=(V2,),
        symptom="right numbers until an executor takes the symbol apart",
    ),
    Mutant(
        name="swap-keeps-parts",
        title="where a name is replaced, the parts of a composite symbol keep the old one",
        target="thunder.core.symbol:BoundSymbol.from_bsym_swap_proxies",
        changes=(
            (
                "subsymbols.append(bsym.from_bsym_swap_proxies(swap_map, skip_inputs, skip_output, skip_subsymbols))",
                "subsymbols.append(bsym)",
            ),
        ),
        pairs=(TORCH, V2),
        symptom="right numbers until an executor takes the symbol apart",
    ),
    Mutant(
        name="dce-first-output-only",
        title="a symbol is needed only for its first output",
        target=f"{_COMMON}:dce",
        changes=(("for out in bsym.flat_proxy_outs:", "for out in bsym.flat_proxy_outs[:1]:"),),
        pairs=(TORCH, V2),
        symptom="a value that nothing computes: the second result of var_mean, of backward kernels",
    ),
    Mutant(
        name="del-outputs-too",
        title="what the trace returns is deleted after its last use",
        target=f"{_PASSES}:_del_last_used",
        changes=(("            handled[out] = None\n", "            pass\n"),),
        pairs=(TORCH, V2),
        symptom="UnboundLocalError",
        equivalent="the return statement, which comes first in the reversed order, marks what it takes as used too",
    ),
    Mutant(
        name="del-after-first-use",
        title="a value is deleted after its first use, not its last",
        target=f"{_PASSES}:_del_last_used",
        changes=(
            ("for bsym in reversed(bound_symbols):", "for bsym in bound_symbols:"),
            (
                "bsyms.appendleft(bsym)\n\n    return list(bsyms)",
                "bsyms.appendleft(bsym)\n\n    return list(reversed(bsyms))",
            ),
        ),
        pairs=(TORCH, V2),
        symptom="UnboundLocalError",
    ),
    Mutant(
        name="del-keeps-collections",
        title="the list of saved tensors is not emptied in backward",
        target=f"{_PASSES}:_del_last_used",
        changes=(("        if clear_mutable_collections:\n", "        if False:\n"),),
        pairs=(TORCH, V2),
        symptom="an assertion in ThunderFunction.backward",
    ),
    Mutant(
        name="cache-forgets-grad-mode",
        title="the cache does not look at torch.is_grad_enabled()",
        target="thunder:jit",
        changes=(
            ('cache_info["is_grad_enabled"] = pytorch.is_grad_enabled()', 'cache_info["is_grad_enabled"] = True'),
        ),
        pairs=(TORCH, V2),
        symptom="a step without grad runs the trace of training, its output requires grad",
    ),
    Mutant(
        name="guard-ignores-sizes",
        title="the prologue compares the rank of a tensor and not its sizes",
        target="thunder.executors.pythonex:_check_tensor_shape_and_metadata_impl",
        changes=(("isinstance(ref, NumberProxy) or x == ref", "True"),),
        pairs=(V2, TORCH),
        symptom="a second shape runs the trace, and the FP8 state, of the first",
    ),
    Mutant(
        name="guard-ignores-requires-grad",
        title="the prologue does not compare whether a tensor requires grad",
        target="thunder.executors.pythonex:_check_tensor_shape_and_metadata_impl",
        changes=(("and t.requires_grad == requires_grad", "and True"),),
        pairs=(V2, TORCH),
        symptom="a step with other frozen parameters runs the trace, and the FP8 state, of an earlier one",
    ),
    Mutant(
        name="trace-context-survives-exception",
        title="a program that raises while it is traced leaves its trace behind as the current one",
        target="thunder.core.trace:tracectx",
        changes=(("finally:", "except ZeroDivisionError:\n        raise\n    else:"),),
        pairs=(TORCH, V2),
        symptom="after an exception that was caught, the next call runs what belongs to the one that raised",
    ),
    Mutant(
        name="autograd-returns-none",
        title="the switch for FSDP's gradients is read the wrong way round",
        target=f"{_AUTOGRAD}:ThunderFunction.backward",
        changes=(("if not ctx.return_none_instead_of_grads:", "if ctx.return_none_instead_of_grads:"),),
        pairs=(TORCH, V2),
        symptom="no gradients",
    ),
    Mutant(
        name="autograd-saved-reversed",
        title="saved tensors come back in another order",
        target=f"{_AUTOGRAD}:ThunderOutputFunction.backward",
        changes=(("list(ctx.saved_tensors)", "list(ctx.saved_tensors)[::-1]"),),
        pairs=(TORCH, V2),
        symptom="an exception, or wrong gradients where the shapes fit",
    ),
    Mutant(
        name="autograd-keeps-saved-tensors",
        title="a reference to the saved tensors of every call stays on the autograd function",
        target=f"{_AUTOGRAD}:ThunderFunction.forward",
        changes=(
            (
                "ctx.saved_other = saved_other\n",
                "ctx.saved_other = saved_other\n"
                "        ThunderFunction.kept = (getattr(ThunderFunction, 'kept', None), saved_tensors)\n",
            ),
        ),
        pairs=(TORCH, V2),
        symptom="memory grows with every step",
    ),
    Mutant(
        name="cache-never-hits",
        title="the cache looks at none of its entries",
        target="thunder:jit",
        changes=(("for cache_entry in reversed(cs.interpreter_cache):", "for cache_entry in ():"),),
        pairs=(TORCH,),
        symptom="every step is compiled again; right numbers without TE",
    ),
    Mutant(
        name="interpreter-loses-tags",
        title="the trace interpreter does not inherit the tags of a value that it replaces",
        target="thunder.core.trace_interpreter:TraceSubstitutionProcessor.write",
        changes=(("        val.tags.update(v.tags)\n", ""),),
        pairs=(V2, TORCH),
        symptom="checkpointed regions are not recomputed where they are taken apart",
        equivalent="what says that a symbol is recomputed is on the symbol, too, and DETACHED_AUTOGRAD_GRAPH is read "
        "before the first pass that replaces values (but for tensor parallelism, which runs a trace again)",
    ),
    Mutant(
        name="autocast-outermost-region-wins",
        title="of nested torch.autocast regions the outermost one counts, not the innermost",
        target="thunder.core.utils:AutocastStack.get_dtype_for_device_if_enabled",
        changes=(("in reversed(self.stack)", "in self.stack"),),
        pairs=(TORCH, V2),
        symptom="bfloat16 in a part that switches autocast off",
    ),
)
