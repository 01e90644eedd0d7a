"""Quantized fused Mixture-of-Experts: one oracle, every format, every reason."""
from . import integrations
from ._moracle import (Checkpoint, DescribedMatrix, DescribedWeights, Device, FusedMoe, Generation, LayerSpec, Linear,
                       Machine, Model, Scheme, Selection, TokenIterator, TunedLayer, TunedTime, __version__, bench_layer,
                       describe_linear, describe_tensors, explain, has_cuda, online_schemes, quantize, select, tune)
from .errors import BadFile, Cancelled, Error, InvalidArgument, IoError, OutOfMemory, Unsupported
from .experts import fused_experts
from .linears import PackedLinear, pack_linear
from .packed import PackedExperts, pack

__all__ = ["BadFile", "Cancelled", "Checkpoint", "DescribedMatrix", "DescribedWeights", "Device", "Error", "FusedMoe",
           "Generation", "InvalidArgument", "IoError", "LayerSpec", "Linear", "Machine", "Model", "OutOfMemory",
           "PackedExperts", "PackedLinear", "Scheme", "Selection", "TokenIterator", "TunedLayer", "TunedTime", "Unsupported",
           "__version__", "bench_layer", "describe_linear", "describe_tensors", "explain", "fused_experts", "has_cuda",
           "online_schemes", "pack", "pack_linear", "quantize", "select", "tune"]
