"""vLLM's MoE layers on Moracle: a plugin, which vLLM finds by the entry point vllm.general_plugins.

It does nothing by default. `--quantization moracle` or the environment variable MORACLE_VLLM turns it on:
auto: Moracle serves the experts that it can, vLLM's own methods the others; require: an expert layer that Moracle
declines is an error; off.
"""
import os
import re

from ...errors import InvalidArgument, Unsupported

NAME = "moracle"
VARIABLE = "MORACLE_VLLM"
MODES = ("off", "auto", "require")
FIRST, LAST = (0, 32), (0, 33)  # versions of vLLM whose interfaces the plugin knows


def mode():
    """The value of MORACLE_VLLM."""
    value = os.environ.get(VARIABLE, "off")
    if value not in MODES:
        need, fact = "off, auto or require", f"it is '{value}'"
        raise InvalidArgument(f"{VARIABLE}: needs {need}; {fact}", "", VARIABLE, need, fact)
    return value


def check_version(version):
    """Errors: a version of vLLM that the plugin does not know."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and FIRST <= (int(found[1]), int(found[2])) <= LAST:
        return
    need, fact = "vLLM {}.{} to {}.{}".format(*FIRST, *LAST), f"it is {version}"
    raise Unsupported(f"vllm: needs {need}; {fact}", "", "vllm", need, fact)


def register():
    """The entry point. vLLM calls it once in every process."""
    chosen = mode()
    from vllm import version
    from vllm.logger import init_logger
    try:
        check_version(version.__version__)
    except Unsupported as error:
        if chosen == "require":
            raise
        # Without the plugin vLLM runs its own methods, so an unknown version is no error.
        (init_logger("vllm.moracle").warning if chosen == "auto" else init_logger("vllm.moracle").debug)(
            "moracle serves no layer: %s", error)
        return
    from . import config
    config.register(chosen)
