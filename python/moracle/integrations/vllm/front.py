"""Puts functions in front of those of a class of vLLM."""
import functools

_OWN_OF_EVERY_CLASS = ("__dict__", "__weakref__", "__module__", "__doc__", "__slots__", "__qualname__")


@functools.cache
def in_front(functions, own):
    """A subclass of `own` with its name and the members of the class `functions`, where `_own` is `own`.

    One base: Python then lets an object of `own` become one of the subclass.
    """
    members = {name: member for name, member in vars(functions).items() if name not in _OWN_OF_EVERY_CLASS}
    return type(own.__name__, (own,), members | {"_own": own})
