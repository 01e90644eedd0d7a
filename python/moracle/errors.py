"""Exceptions of the library. Every class is a subclass of moracle.Error."""


class Error(Exception):
    """Base class. str() is one line: "file: place: needs <need>; <fact>".

    file   file or folder; empty if no file is involved
    place  tensor, key, byte, layer or argument
    need   the required value or state
    fact   the value or state that was found
    """

    def __init__(self, message, file="", place="", need="", fact=""):
        super().__init__(message)
        self.file = file
        self.place = place
        self.need = need
        self.fact = fact

    def __reduce__(self):
        return type(self), (self.args[0], self.file, self.place, self.need, self.fact)


class InvalidArgument(Error, ValueError):
    """An invalid argument. `place` names it."""


class BadFile(Error, ValueError):
    """The content of a file contradicts its format or its config."""


class Unsupported(Error, NotImplementedError):
    """A valid request that this build or machine cannot serve."""


class IoError(Error, OSError):
    """A system error of a file or a device."""


class OutOfMemory(Error, MemoryError):
    """`need` and `fact` hold the required and the available memory."""


class Cancelled(Error):
    """The progress function returned False."""
