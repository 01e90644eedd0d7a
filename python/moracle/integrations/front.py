"""Puts functions in front of those of a class or a module of an engine."""
import contextlib
import functools
import importlib

_OWN_OF_EVERY_CLASS = ("__dict__", "__weakref__", "__module__", "__doc__", "__slots__", "__qualname__")


@functools.cache
def in_front(functions, own):
    """A subclass of `own` with its name and the members of the class `functions`, where `_own` is `own`.

    One base: Python then lets an object of `own` become one of the subclass.
    """
    members = {name: member for name, member in vars(functions).items() if name not in _OWN_OF_EVERY_CLASS}
    return type(own.__name__, (own,), members | {"_own": own})


@contextlib.contextmanager
def left_out(functions):
    """Within it functions of modules are others. `functions`: (module, name, the other function)."""
    kept = []
    for module, name, other in functions:
        module = importlib.import_module(module)
        kept.append((module, name, getattr(module, name), other))
    try:
        for module, name, _, other in kept:
            setattr(module, name, other)
        yield
    finally:
        for module, name, function, _ in kept:
            setattr(module, name, function)
