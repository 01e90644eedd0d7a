"""SGLang's MoE layers on Moracle: a plugin, which SGLang finds by the entry point sglang.srt.plugins.

`--moe-runner-backend moracle` turns it on. Without that option SGLang's own runners serve every layer.
"""
import re

from ...errors import Unsupported

NAME = "moracle"
FIRST, LAST = (0, 5, 23), (0, 5, 23)  # versions of SGLang whose interfaces the plugin knows


def check_version(version):
    """Errors: a version of SGLang that the plugin does not know."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found and FIRST <= tuple(map(int, found.groups())) <= LAST:
        return
    need, fact = "SGLang " + ".".join(map(str, FIRST)), f"it is {version}"
    if FIRST != LAST:
        need += " to " + ".".join(map(str, LAST))
    raise Unsupported(f"sglang: needs {need}; {fact}", "", "sglang", need, fact)


def register():
    """The entry point. SGLang calls it once in every process, before it reads the command line.

    Errors: a version that the plugin does not know. SGLang logs them and then refuses the option's value.
    """
    from sglang.version import __version__
    check_version(__version__)
    from . import methods
    methods.register()
