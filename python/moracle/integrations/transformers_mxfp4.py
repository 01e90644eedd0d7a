"""Loads GPT-OSS in transformers with its MXFP4 codes as stored: no kernels package, and no copy in bf16.

transformers needs downloaded kernels for these codes, or dequantizes them to four times the size. With
experts_implementation="moracle" its loader stores the codes in Mxfp4Experts.
"""
import torch
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer

from ..errors import Unsupported

NAME = "moracle"
BLOCK = 32  # elements per scale


def _parameter(*shape, dtype):
    return torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class Mxfp4Experts(torch.nn.Module):
    """Experts of one layer, with the checkpoint's parameter names: codes, scales and biases."""

    def __init__(self, experts, config, forward):
        super().__init__()
        self.config = config
        self.alpha, self.limit = float(experts.alpha), float(experts.limit)
        self._forward = forward
        sizes = {"gate_up_proj": (2 * config.intermediate_size, config.hidden_size),
                 "down_proj": (config.hidden_size, config.intermediate_size)}
        for name, (rows, columns) in sizes.items():
            shape = (config.num_local_experts, rows, columns // BLOCK)
            setattr(self, f"{name}_blocks", _parameter(*shape, BLOCK // 2, dtype=torch.uint8))
            setattr(self, f"{name}_scales", _parameter(*shape, dtype=torch.uint8))
            bias = getattr(experts, f"{name}_bias")
            setattr(self, f"{name}_bias", _parameter(*bias.shape, dtype=bias.dtype))

    def forward(self, hidden_states, router_indices=None, routing_weights=None):
        if self.config._experts_implementation != NAME:
            need, fact = f'experts_implementation="{NAME}"', f"it is {self.config._experts_implementation}"
            place, need = "Mxfp4Experts", need + ", with which the model was loaded"
            raise Unsupported(f"{place}: needs {need}; {fact}", "", place, need, fact)
        return self._forward(self, hidden_states, router_indices, routing_weights)

    def weights(self):
        return [self.gate_up_proj_blocks, self.down_proj_blocks]

    def arguments(self):
        """Arguments of pack()."""
        blocks = [weight.detach().flatten(2) for weight in self.weights()]
        return {"w1": blocks[0], "w2": blocks[1], "scheme": "mxfp4-w4a16", "interleaved": True,
                "w1_scale": self.gate_up_proj_scales.detach(), "w2_scale": self.down_proj_scales.detach(),
                "w1_bias": self.gate_up_proj_bias.detach(), "w2_bias": self.down_proj_bias.detach(),
                "activation": "swigluoai", "alpha": self.alpha, "limit": self.limit}


def quantizer(forward):
    """Returns a quantizer class for transformers. `forward`: the forward function of the experts."""

    class Quantizer(Mxfp4HfQuantizer):
        """Keeps the codes of models with experts_implementation="moracle"; other models load as before."""

        _keeps_codes = False

        def validate_environment(self, *args, **kwargs):
            self._validated = args, kwargs  # validate later, when the model and its implementation are known

        def _process_model_before_weight_loading(self, model, **kwargs):
            wanted = getattr(model.config, "_experts_implementation", None) == NAME
            if not wanted or not self.pre_quantized or self.quantization_config.dequantize:
                super().validate_environment(*self._validated[0], **self._validated[1])
                return super()._process_model_before_weight_loading(model, **kwargs)
            self._keeps_codes = True
            for name, module in list(model.named_modules()):
                if type(module).__name__ == "GptOssExperts":
                    with torch.device("meta"):
                        model.set_submodule(name, Mxfp4Experts(module, module.config, forward))

        def get_load_operations(self):
            return {} if self._keeps_codes else super().get_load_operations()

        def get_weight_conversions(self):
            return [] if self._keeps_codes else super().get_weight_conversions()

    return Quantizer
