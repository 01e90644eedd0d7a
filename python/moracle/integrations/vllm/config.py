"""The quantization config "moracle": the checkpoint's own config of vLLM, whose experts Moracle serves."""
import functools

import vllm.envs
from vllm.model_executor.layers.fused_moe import RoutedExperts, UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import (QUANTIZATION_METHODS, get_quantization_config,
                                                     register_quantization_config)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from ..._moracle import __version__
from ...errors import Unsupported
from . import NAME, VARIABLE, mode
from ..front import in_front
from .linears import linear_method_of
from .methods import Unquantized, method_of, serves_experts_of
from .plain_linears import install

# Methods of vLLM that claim a checkpoint only when the user names them.
_NEVER_INNER = (NAME, "moe_wna16", "humming")
# Configs of vLLM whose experts have rows in SCHEMES. vLLM reads others by the name of their method, so they keep it.
_CLAIMED = ("auto_gptq", "auto_awq", "awq", "compressed-tensors", "fp8", "modelopt", "modelopt_fp4", "modelopt_mxfp8",
            "mxfp8", "gpt_oss_mxfp4")
# How checkpoints name their number of experts.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")


def _has_experts(hf_config):
    configs = [hf_config, getattr(hf_config, "text_config", None)]
    return any(getattr(config, name, None) for config in configs for name in _EXPERTS)


def _inner_name(config, hf_config):
    """vLLM's own choice of a method for this checkpoint's quantization config."""
    for name in QUANTIZATION_METHODS:
        if name in _NEVER_INNER:
            continue
        override = get_quantization_config(name).override_quantization_method(config, None, hf_config=hf_config)
        if override is not None:
            return override
    return config["quant_method"]


def _inner_class(config, hf_config):
    return get_quantization_config(_inner_name(config, hf_config))


def _is_active(vllm_config):
    """True if the plugin serves layers of a model: its config is the plugin's, or Moracle runs experts of it."""
    config = vllm_config.quant_config
    return isinstance(config, MoracleConfig) or hasattr(config, "_own") or serves_experts_of(vllm_config)


class _Serving:
    """In front of a config class of vLLM: other layers than experts and linear layers stay with that class."""

    def get_quant_method(self, layer, prefix):
        install(_is_active)
        make = functools.partial(self._own.get_quant_method, self, layer, prefix)
        if isinstance(layer, RoutedExperts):
            return method_of(make, layer)
        return linear_method_of(make()) if isinstance(layer, LinearBase) else make()

    def maybe_update_config(self, model_name, hf_config=None, revision=None):
        # Some classes are chosen by the model's type, which from_config does not get.
        inner = _inner_class(self._checkpoint_config, hf_config)
        if inner is not self._own:
            other = _serving(inner, self._checkpoint_config)
            self.__class__, self.__dict__ = type(other), other.__dict__
        self._own.maybe_update_config(self, model_name, hf_config=hf_config, revision=revision)

    def __reduce__(self):  # vLLM sends its config to other processes; the class exists only here
        return _restore, (self._own, self.__dict__)


def _serving(inner, config):
    serving = inner.from_config(config)
    serving.__class__ = in_front(_Serving, type(serving))
    serving._checkpoint_config = config
    return serving


def _restore(inner, attributes):
    serving = object.__new__(in_front(_Serving, inner))
    serving.__dict__.update(attributes)
    return serving


class MoracleConfig(QuantizationConfig):
    """For checkpoints without quantization. from_config() returns vLLM's own config of other checkpoints."""

    @classmethod
    def get_name(cls):
        return NAME

    @classmethod
    def get_supported_act_dtypes(cls):
        import torch
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls):
        return 75

    @staticmethod
    def get_config_filenames():
        return []

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg, user_quant, hf_config=None):
        if user_quant != NAME and (user_quant is not None or mode() == "off" or not _has_experts(hf_config)):
            return None
        name = _inner_name(hf_quant_cfg, hf_config)
        if name in _CLAIMED:
            return NAME
        if user_quant != NAME and mode() != "require":
            return None
        need, fact = "a checkpoint quantized by " + ", ".join(_CLAIMED), f"it is {name}"
        raise Unsupported(f"quantization: needs {need}; {fact}", "", "quantization", need, fact)

    @classmethod
    def from_config(cls, config):
        _key_compile_cache()
        return _serving(_inner_class(config, None), config)

    def __init__(self):
        super().__init__()
        _key_compile_cache()

    def get_quant_method(self, layer, prefix):
        install(_is_active)
        if isinstance(layer, RoutedExperts):
            return method_of(functools.partial(UnquantizedFusedMoEMethod, layer.moe_config), layer)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


def _key_compile_cache():
    """Makes the version and the mode part of the key of vLLM's compile cache: compiled code calls Moracle's operator."""
    vllm.envs.environment_variables.setdefault(VARIABLE, lambda: f"{mode()} {__version__}")


def register(chosen):
    """Registers the config, and in the modes auto and require also the method of experts without quantization."""
    if NAME not in QUANTIZATION_METHODS:
        register_quantization_config(NAME)(MoracleConfig)
    if chosen != "off":
        _key_compile_cache()
        Unquantized.register()
        install(_is_active)
