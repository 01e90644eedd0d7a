"""The command that the package contains: `moracle`, or `python -m moracle`."""
import os
import pathlib
import sys

COMMAND = pathlib.Path(__file__).parent / "bin" / "moracle"


def main():
    """Replaces this process by the command."""
    if not COMMAND.exists():
        sys.exit(f"moracle: needs the command in {COMMAND}; this package was built without it (MORACLE_COMMAND=OFF)")
    os.execv(COMMAND, ["moracle", *sys.argv[1:]])


if __name__ == "__main__":
    main()
