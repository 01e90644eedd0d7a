"""The PyPI packages of the peers, installed into the running environment."""

import importlib.metadata
import os
import subprocess
import sys


def _there(requirement):
    name, _, version = requirement.partition("==")
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return not version or found.partition("+")[0] == version


def install(peers):
    """Installs missing packages. Prints packages that cannot be installed; their peers are then absent."""
    for peer in peers:
        for requirement in (*peer.needs, *peer.packages):
            if _there(requirement):
                continue
            print(f"installing {requirement}", file=sys.stderr, flush=True)
            alone = ["--no-deps"] if requirement in peer.packages else []
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "-q", *alone, requirement],
                env={**os.environ, **peer.install_environment}, stdout=sys.stderr)
            if done.returncode != 0:
                print(f"  {requirement} cannot be installed", file=sys.stderr)
