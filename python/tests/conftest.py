"""Shared fixtures. Tests skip with a reason if a package or checkpoint is missing."""
import os
import pathlib

import numpy as np
import pytest

import moracle

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model_folder():
    """The small checkpoint of the repository: three layers, 16 experts, GPTQ int4."""
    return ROOT / "models" / "qwen3moe-gptq-int4-g128"


@pytest.fixture(scope="session")
def device():
    return moracle.Device("cpu", threads=2)


@pytest.fixture(scope="session")
def model(model_folder):
    return moracle.Model.load(model_folder, threads=2)


@pytest.fixture
def checkpoint(model_folder):
    return moracle.Checkpoint(model_folder)


@pytest.fixture(scope="session")
def command():
    """Path of the command, for comparisons."""
    path = os.environ.get("MORACLE_COMMAND", "")
    if not path:
        pytest.skip("MORACLE_COMMAND does not name the command")
    return path


@pytest.fixture(scope="session")
def shared_checkpoint():
    """Returns a function that finds the folder of a full checkpoint beside the clone."""
    def find(name):
        folder = ROOT.parent / "shared" / "checkpoints" / name
        if not folder.exists():
            pytest.skip(f"the checkpoint {name} is not beside the clone")
        return folder
    return find


@pytest.fixture
def rng():
    return np.random.default_rng(7)
