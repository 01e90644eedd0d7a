// Bindings of tune and bench_layer.
#include <algorithm>

#include "base/threads/thread_pool.h"
#include "bench/bench.h"
#include "bindings.h"
#include "calls.h"
#include "kernels/kernel_device.h"
#include "kernels/limits.h"

namespace moracle::python {
namespace {

nb::dict measurement_dict(const bench::Measurement& m, std::string_view backend) {
  nb::dict dict;
  dict["backend"] = std::string(backend);
  dict["num_tokens"] = m.num_tokens;
  dict["runs"] = m.runs;
  dict["us_median"] = m.us_median;
  dict["us_min"] = m.us_min;
  dict["us_p10"] = m.us_p10;
  dict["us_p90"] = m.us_p90;
  dict["bytes"] = m.bytes;
  dict["ops"] = m.ops;
  dict["us_floor"] = m.us_floor();
  dict["share_of_limit"] = m.share_of_limit();
  return dict;
}

// Times one layer for each number of tokens.
Result<std::vector<bench::Measurement>> measure_all(const Selection& selection,
                                                    const std::shared_ptr<Device>& device,
                                                    const std::vector<int64_t>& tokens,
                                                    double seconds, const Progress& go_on) {
  auto probe = open_limits(device, kernel_device(*device).host_threads().size(), 0, go_on);
  if (!probe) return probe.error();
  auto limits = (*probe)->measure(go_on);
  if (!limits) return limits.error();
  const int64_t memory = (*probe)->memory_bytes() / 2 - (*probe)->buffer_bytes();
  auto ring = bench::LayerRing::make(selection, device, (*probe)->buffer_bytes(), memory, go_on);
  if (!ring) return ring.error();
  std::vector<bench::Measurement> measured;
  for (const int64_t count : tokens) {
    auto one = bench::measure(*ring, count, {.seconds = seconds}, **probe, limits->peaks, go_on);
    if (!one) return one.error();
    measured.push_back(*std::move(one));
  }
  return measured;
}

nb::list bench_layer(nb::handle layer, nb::handle scheme, const std::vector<int64_t>& tokens,
                     const nb::str& backend, nb::handle device, double seconds,
                     nb::object progress) {
  Request request;
  if (nb::isinstance<LayerSpec>(layer)) {
    request.layer = nb::cast<LayerSpec>(layer);
  } else {
    const auto shape = value_of(bench::find_shape(utf8_of(layer, "layer")));
    request.layer = bench::layer_of(shape, scheme_of(scheme));
  }
  for (const int64_t count : tokens) {
    if (count < 1) fail_argument("tokens", "numbers from 1", "it has " + std::to_string(count));
  }
  if (tokens.empty()) fail_argument("tokens", "at least one number", "it is empty");
  const std::shared_ptr<Device> on = device_of(device);
  request.max_num_tokens = *std::max_element(tokens.begin(), tokens.end());
  request.platform = on->platform();
  request.backend = utf8_of(backend, "backend");
  const Selection selection = select(request, Machine::here());
  const Plan plan = value_of(selection.chosen());
  LongCall call(std::move(progress));
  const auto measured = call.run(
      [&](const Progress& go_on) { return measure_all(selection, on, tokens, seconds, go_on); });
  nb::list rows;
  for (const bench::Measurement& one : measured)
    rows.append(measurement_dict(one, name(*plan.backend)));
  return rows;
}

TunedLayer tune_layer(const LayerSpec& layer, nb::handle device, const std::vector<int64_t>& tokens,
                      double seconds, bool bf16_activations, nb::object progress) {
  const std::shared_ptr<Device> on = device_of(device);
  TuneOptions options;
  options.tokens = tokens;
  options.seconds = seconds;
  options.device = value_of(parse_device(on->name()));
  options.bf16_activations = bf16_activations;
  LongCall call(std::move(progress));
  return call.run(
      [&](const Progress& go_on) { return tune(layer, Machine::here(), on, options, go_on); });
}

}  // namespace

void bind_measuring(nb::module_& m) {
  m.def(
      "bench_layer", &bench_layer, nb::arg("layer"), nb::arg("scheme") = "bf16",
      nb::arg("tokens") = nb::make_tuple(1, 16, 256), nb::kw_only(), nb::arg("backend") = "auto",
      nb::arg("device") = "cpu", nb::arg("seconds") = 1.0, nb::arg("progress") = nb::none(),
      nb::sig("def bench_layer(layer: LayerSpec | str, scheme: Scheme | str = 'bf16', tokens: "
              "collections.abc.Sequence[int] = (1, 16, 256), *, backend: str = 'auto', device: "
              "Device | str = "
              "'cpu', seconds: float = 1.0, progress: collections.abc.Callable[[int, int], bool | "
              "None] | None = "
              "None) -> list[dict[str, typing.Any]]"),
      "Times a layer with random weights, as `moracle bench` does: one dict per number of tokens, "
      "times in microseconds. `layer`: a LayerSpec (then `scheme` is not used), a published shape "
      "(\"qwen3-30b-a3b\"), or \"experts x hidden x intermediate x top_k\" without spaces.");
  m.def("tune", &tune_layer, nb::arg("layer"), nb::arg("device") = "cpu", nb::kw_only(),
        nb::arg("tokens") = nb::make_tuple(1, 16, 256), nb::arg("seconds") = 20.0,
        nb::arg("bf16_activations") = false, nb::arg("progress") = nb::none(),
        nb::sig("def tune(layer: LayerSpec, device: Device | str = 'cpu', *, tokens: "
                "collections.abc.Sequence[int] = "
                "(1, 16, 256), seconds: float = 20.0, bf16_activations: bool = False, progress: "
                "collections.abc.Callable[[int, int], bool | None] | None = None) -> TunedLayer"),
        "Times every backend that serves the layer on `device`. Put the result in Machine.tuned, "
        "or pass it to Model.load(tuned=[...]): the oracle then prefers the fastest backend.");
}

}  // namespace moracle::python
