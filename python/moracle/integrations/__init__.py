"""Integrations. Import a module of this folder only if its library is installed."""
import importlib


def __getattr__(name):
    """Modules as attributes, for packages that were loaded under another name: package.integrations.torch."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise  # the library of the integration is not installed
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
