"""Errors as exceptions with file, place, need and fact."""
import pickle

import pytest

import moracle


def test_error_holds_its_parts(tmp_path):
    with pytest.raises(moracle.BadFile) as raised:
        moracle.Checkpoint(tmp_path)
    error = raised.value
    assert str(tmp_path) in error.file
    assert error.need and error.fact
    assert str(error) == f"{error.file}: needs {error.need}; {error.fact}"


@pytest.mark.parametrize("kind, standard", [
    (moracle.InvalidArgument, ValueError), (moracle.BadFile, ValueError), (moracle.Unsupported, NotImplementedError),
    (moracle.IoError, OSError), (moracle.OutOfMemory, MemoryError), (moracle.Cancelled, moracle.Error)])
def test_kinds_are_also_standard_exceptions(kind, standard):
    assert issubclass(kind, moracle.Error)
    assert issubclass(kind, standard)


def test_error_survives_pickling():
    with pytest.raises(moracle.InvalidArgument) as raised:
        moracle.Scheme("int3-w3a16-g128")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is moracle.InvalidArgument
    assert (str(again), again.place, again.need) == (str(raised.value), raised.value.place, raised.value.need)


def test_consumed_weights_are_refused(checkpoint, device):
    weights = checkpoint.moe_layer(0)
    moracle.FusedMoe(weights, device=device)
    with pytest.raises(moracle.InvalidArgument, match="weights: needs weights that no layer has consumed"):
        moracle.FusedMoe(weights, device=device)
