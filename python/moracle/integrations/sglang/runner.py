"""The runner core "moracle": packed experts on what SGLang's dispatchers deliver."""
import dataclasses

import torch
from sglang.srt.layers.moe.moe_runner.base import DispatchMoeRunnerCore, MoeQuantInfo
from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput
from sglang.srt.layers.moe.topk import TopKOutputChecker
from sglang.srt.layers.moe.utils import resolve_moe_runner_backend

from ...errors import Unsupported
from ...packed import PackedExperts
from ..torch import call_packed
from . import NAME


@dataclasses.dataclass
class PackedInfo(MoeQuantInfo):
    """What a layer hands to the core: its packed experts."""
    packed: PackedExperts


def _refuse(place, need, fact):
    raise Unsupported(f"{place}: needs {need}; {fact}", "", place, need, fact)


def _batched(packed, hidden_states, counts):
    """Rows of each local expert [experts, rows, hidden_size], of which the first `counts` are tokens. Other rows become 0.

    No weights: the dispatcher applies them when it combines.
    """
    experts, rows, size = hidden_states.shape
    used = torch.arange(rows, device=counts.device) < counts[:, None]
    ids = torch.arange(experts, device=counts.device, dtype=torch.int32)[:, None]
    top_k = packed.moe.spec.top_k
    topk_ids = torch.full((experts * rows, top_k), -1, dtype=torch.int32, device=counts.device)
    topk_ids[:, 0] = torch.where(used, ids, -1).flatten()
    weights = torch.ones(1, 1, device=counts.device).expand(experts * rows, top_k)
    return call_packed(packed, hidden_states.reshape(-1, size), weights, topk_ids).view(experts, rows, size)


class MoracleRunnerCore(DispatchMoeRunnerCore):
    """Runs packed experts on tokens with their experts (standard, DeepEP normal) or on rows by expert (DeepEP low latency)."""

    @property
    def runner_backend(self):
        return resolve_moe_runner_backend(NAME)

    def run_from_dispatch(self, dispatch_output, quant_info, runner_config, hooks=None):
        if hooks is not None:
            _refuse("lora", "experts without LoRA", "LoRA is enabled")
        form = dispatch_output.format
        if getattr(dispatch_output, "hidden_states_scale", None) is not None:
            _refuse("hidden_states", "tokens in bf16: deepep_dispatcher_output_dtype bf16", "they are quantized")
        packed, hidden_states = quant_info.packed, dispatch_output.hidden_states
        if form.is_standard():
            topk = dispatch_output.topk_output
            if TopKOutputChecker.format_is_bypassed(topk):
                topk = topk.to_standard()
            output = call_packed(packed, hidden_states, topk.topk_weights, topk.topk_ids)
            factor = runner_config.routed_scaling_factor
            return StandardCombineInput(hidden_states=output if factor in (None, 1.0) else output.mul_(factor))
        if not form.is_deepep():
            _refuse("dispatch", "the formats standard, deepep_normal or deepep_ll", f"it is {form.value}")
        from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPLLCombineInput, DeepEPNormalCombineInput
        topk_ids, topk_weights = dispatch_output.topk_ids, dispatch_output.topk_weights
        if form.is_deepep_ll():
            return DeepEPLLCombineInput(_batched(packed, hidden_states, dispatch_output.masked_m), topk_ids, topk_weights)
        return DeepEPNormalCombineInput(call_packed(packed, hidden_states, topk_weights, topk_ids), topk_ids, topk_weights)
