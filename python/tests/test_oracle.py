"""select, explain and Selection."""
import json
import subprocess

import pytest

import moracle

LAYER = {"num_experts": 8, "hidden_size": 64, "intermediate_size": 32, "top_k": 2}


def test_selection_equals_the_command(command, model_folder, checkpoint):
    run = subprocess.run([command, "explain", str(model_folder), "--json"], capture_output=True, text=True, check=True)
    group = json.loads(run.stdout)["groups"][0]
    selection = moracle.select(checkpoint.moe_layer(0), device="cpu").to_dict()
    for key in ("scheme", "chosen", "weight_bytes", "considered", "plan"):
        assert selection[key] == group[key], key


def test_text_names_every_backend_with_its_verdict():
    selection = moracle.select(moracle.LayerSpec(scheme="int4-w4a16-g32", **LAYER), device="cpu")
    rows = {row.split()[0]: row for row in str(selection).replace("> ", "  ").splitlines()[2:] if row[2:3] != " "}
    considered = selection.to_dict()["considered"]
    assert set(rows) == {row["backend"] for row in considered}
    for row in considered:
        assert rows[row["backend"]].split()[1] == ("yes" if row["accepted"] else "no")
    assert moracle.explain(selection) == str(selection)
    assert len(moracle.explain(selection, all_reasons=False)) < len(str(selection))


def test_html_marks_the_choice_and_escapes_text():
    selection = moracle.select(moracle.LayerSpec(**LAYER), device="cpu")
    html = selection._repr_html_()
    assert f"<b>{selection.backend}</b>" in html
    assert html.count("<tr>") == 1 + len(selection.to_dict()["considered"])
    assert "->" not in html


def test_named_backend_that_cannot_serve_is_an_error_with_reasons():
    selection = moracle.select(moracle.LayerSpec(**LAYER), backend="cuda-sm90", device="cpu")
    assert selection.backend is None
    with pytest.raises(moracle.Unsupported) as raised:
        selection.check()
    assert "cuda-sm90" in str(raised.value)


@pytest.mark.parametrize("change, text", [
    ({"num_experts": 0}, "num_experts: needs 1 to 1048576; it is 0"),
    ({"num_experts": -1}, "num_experts: needs 1 to 1048576; it is -1"),
    ({"num_experts": 2**62}, "num_experts: needs 1 to 1048576; it is 4611686018427387904"),
    ({"hidden_size": -256}, "hidden_size: needs 1 to 1048576; it is -256"),
    ({"intermediate_size": 0}, "intermediate_size: needs 1 to 1048576; it is 0"),
    ({"top_k": 0}, "top_k: needs 1 to 8"), ({"top_k": -3}, "top_k: needs 1 to 8"), ({"top_k": 9}, "top_k: needs 1 to 8"),
    ({"limit": float("nan")}, "limit: needs a finite number of at least 0; it is nan"),
    ({"activation": "swigluoai"}, "limit: needs a finite number above 0; it is 0")])
def test_invalid_spec_is_refused_by_name(change, text, device):
    layer = moracle.LayerSpec(**LAYER | change)
    selection = moracle.select(layer, device="cpu")
    assert selection.backend is None
    assert {row["reasons"][0]["rule"] for row in selection.to_dict()["considered"]} == {"layer-spec"}
    assert "layer-spec" in moracle.explain(selection)
    for call in (selection.check, lambda: moracle.bench_layer(layer, device=device, seconds=0.01),
                 lambda: moracle.tune(layer, device, tokens=[1], seconds=0.01)):
        with pytest.raises(moracle.InvalidArgument, match=text):
            call()


def test_tune_and_bench_refuse_tokens_and_layers_that_they_cannot_time(device, checkpoint):
    for tokens in ([], [0], [4, -1]):
        with pytest.raises(moracle.InvalidArgument, match="tokens: needs"):
            moracle.tune(moracle.LayerSpec(**LAYER), device, tokens=tokens, seconds=0.01)
        with pytest.raises(moracle.InvalidArgument, match="tokens: needs"):
            moracle.bench_layer(moracle.LayerSpec(**LAYER), device=device, tokens=tokens, seconds=0.01)
    linear = checkpoint.linear(["model.layers.0.self_attn.o_proj"]).spec
    for call in (moracle.tune, moracle.bench_layer):
        with pytest.raises(moracle.Unsupported, match="needs a layer of experts; it is one linear layer"):
            call(linear, device=device, tokens=[1], seconds=0.01)
    with pytest.raises(moracle.InvalidArgument, match="shape: needs top_k: 1 to 8"):
        moracle.bench_layer("8x64x32x9", device=device)


def test_select_works_for_another_known_machine():
    assert "h200" in moracle.Machine.known()
    selection = moracle.select(moracle.LayerSpec(scheme="fp8-w8a8-block128x128", num_experts=128, hidden_size=2048,
                                                 intermediate_size=768, top_k=8), machine="h200", device="cuda")
    assert selection.backend.startswith("cuda")
    with pytest.raises(moracle.InvalidArgument, match="h201"):
        moracle.select(moracle.LayerSpec(**LAYER), machine="h201")


def test_oracle_uses_tuned_times(device):
    layer = moracle.LayerSpec(**LAYER)
    tuned = moracle.tune(layer, device, tokens=[1, 2], seconds=1)  # a busy machine measures fewer backends
    assert all(time.us > 0 and time.num_tokens in (1, 2) for time in tuned.times)
    machine = moracle.Machine.here()
    machine.tuned = [tuned]
    selection = moracle.select(layer, machine, device="cpu").to_dict()
    measured = {row["backend"]: [time["us_median"] for time in row["tuned"]] for row in selection["considered"]}
    first = tuned.times[0]
    assert measured[first.backend][0] == first.us
    assert {name for name, times in measured.items() if times} == {time.backend for time in tuned.times}


def test_bench_layer_reports_times_and_floors(device):
    rows = moracle.bench_layer("8x64x32x2", "int8-w8a8", tokens=[1, 4], device=device, seconds=0.02)
    assert [row["num_tokens"] for row in rows] == [1, 4]
    assert all(0 < row["us_min"] <= row["us_median"] for row in rows)
    with pytest.raises(moracle.InvalidArgument, match="tokens"):
        moracle.bench_layer("8x64x32x2", tokens=[0])


@pytest.mark.parametrize("name", ["bf16", "int8-w8a8", "int4-w4a16-g128", "fp8-w8a8-block128x128", "mxfp4-w4a16"])
def test_scheme_keeps_its_name(name):
    scheme = moracle.Scheme(name)
    assert (scheme.name, str(scheme), repr(scheme)) == (name, name, f"Scheme('{name}')")
    assert scheme == moracle.Scheme(name) and hash(scheme) == hash(moracle.Scheme(name))
    assert scheme != moracle.Scheme("f16") and scheme != name
    assert scheme.is_quantized == (name != "bf16")
