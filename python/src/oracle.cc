#include "bindings.h"
#include "selection_text.h"

namespace moracle::python {

Machine machine_of(nb::handle machine) {
  if (machine.is_none()) return Machine::here();
  if (nb::isinstance<Machine>(machine)) return nb::cast<Machine>(machine);
  return value_of(Machine::find(utf8_of(machine, "machine")));
}

namespace {

void bind_tuned(nb::module_& m) {
  nb::class_<TunedTime>(m, "TunedTime", "The median time of one backend at `num_tokens` tokens.")
      .def_ro("backend", &TunedTime::backend)
      .def_ro("num_tokens", &TunedTime::num_tokens)
      .def_ro("us", &TunedTime::us, "Microseconds.")
      .def("__repr__", [](const TunedTime& self) {
        return "<TunedTime " + self.backend + ": " + std::to_string(self.us) + " us at " +
               std::to_string(self.num_tokens) + " tokens>";
      });
  nb::class_<TunedLayer>(m, "TunedLayer", "Measured backends for a layer: the result of tune().")
      .def_ro("layer", &TunedLayer::layer,
              "The layer in words; layers with equal text share times.")
      .def_ro("times", &TunedLayer::times)
      .def("__repr__", [](const TunedLayer& self) {
        return "<TunedLayer " + self.layer + ": " + std::to_string(self.times.size()) + " times>";
      });
}

void bind_machine(nb::module_& m) {
  nb::class_<Machine>(m, "Machine", "A machine as a value: its hardware and its measured times.")
      .def_static("here", &Machine::here, "The hardware that this process can use.")
      .def_static(
          "find",
          [](const nb::str& name) { return value_of(Machine::find(utf8_of(name, "name"))); },
          nb::arg("name"), "\"here\" or one of known().")
      .def_static(
          "known",
          [] {
            std::vector<std::string> names;
            for (const Machine& machine : Machine::known()) names.push_back(machine.name);
            return names;
          },
          "Names of the known machines, for select() on another machine's behalf.")
      .def_ro("name", &Machine::name)
      .def_prop_ro("cpu", [](const Machine& self) { return self.cpu.model; })
      .def_prop_ro(
          "isa", [](const Machine& self) { return names(self.cpu.isa); },
          "CPU features that select kernels: \"avx2 avx512\".")
      .def_prop_ro("threads", [](const Machine& self) { return self.cpu.threads; })
      .def_prop_ro("memory_bytes", [](const Machine& self) { return self.cpu.memory_bytes; })
      .def_prop_ro("gpus",
                   [](const Machine& self) {
                     std::vector<std::string> models;
                     for (const GpuInfo& gpu : self.gpus) models.push_back(gpu.model);
                     return models;
                   })
      .def_rw("tuned", &Machine::tuned,
              "TunedLayer results; the oracle prefers the fastest backend.")
      .def("__repr__", [](const Machine& self) {
        return "<Machine " + self.name + ": " + self.cpu.model + ">";
      });
}

// Returns the LayerSpec of a spec, of experts or of a linear layer.
LayerSpec spec_of(nb::handle layer) {
  if (nb::isinstance<LayerSpec>(layer)) return nb::cast<LayerSpec>(layer);
  if (nb::hasattr(layer, "spec") && nb::isinstance<LayerSpec>(nb::object(layer.attr("spec"))))
    return nb::cast<LayerSpec>(layer.attr("spec"));
  fail_argument("layer", "a LayerSpec, DescribedWeights or DescribedMatrix",
                "it is " + nb::cast<std::string>(nb::repr(layer)));
}

Selection select_layer(nb::handle layer, nb::handle machine, const nb::str& backend,
                       const nb::str& device, int64_t max_num_tokens, bool deterministic,
                       bool bf16_activations, int64_t ep_size, int64_t ep_rank,
                       const std::optional<std::vector<int32_t>>& expert_map) {
  Request request;
  request.layer = spec_of(layer);
  request.backend = utf8_of(backend, "backend");
  request.max_num_tokens = max_num_tokens;
  request.deterministic = deterministic;
  request.bf16_activations = bf16_activations;
  request.parallel.ep_size = ep_size;
  request.parallel.ep_rank = ep_rank;
  if (expert_map) request.parallel.expert_map = value_of(ExpertMap::from(*expert_map));
  if (const std::string name = utf8_of(device, "device"); !name.empty()) {
    const DeviceName parsed = value_of(parse_device(name));
    request.platform = parsed.platform;
    if (parsed.platform != Platform::kCpu) request.device_index = parsed.index;
  }
  return select(request, machine_of(machine));
}

void bind_selection(nb::module_& m) {
  nb::class_<Selection>(m, "Selection", "Which backend serves a layer, and why the others do not.")
      .def_prop_ro(
          "backend",
          [](const Selection& self) -> std::optional<std::string> {
            if (!self.plan) return {};
            return std::string(name(*self.plan->backend));
          },
          "The chosen backend; None if no backend serves the request.")
      .def_prop_ro("layer", [](const Selection& self) { return self.request.layer; })
      .def(
          "check", [](const Selection& self) { value_of(self.chosen()); },
          "Raises an error with all reasons if no backend serves the request.")
      .def("to_dict", &to_dict,
           "{\"layer\", \"scheme\", \"chosen\", \"weight_bytes\", \"considered\", \"plan\"}: the "
           "same "
           "keys as `moracle explain --json`.")
      .def(
          "__str__", [](const Selection& self) { return explain(self); },
          "The table of `moracle explain`.")
      .def("__repr__", [](const Selection& self) { return explain(self); })
      .def("_repr_html_", &to_html);
}

}  // namespace

void bind_oracle(nb::module_& m) {
  bind_tuned(m);
  bind_machine(m);
  bind_selection(m);
  m.def("select", &select_layer, nb::arg("layer"), nb::arg("machine") = nb::none(), nb::kw_only(),
        nb::arg("backend") = "auto", nb::arg("device") = "", nb::arg("max_num_tokens") = 512,
        nb::arg("deterministic") = false, nb::arg("bf16_activations") = false,
        nb::arg("ep_size") = 1, nb::arg("ep_rank") = 0, nb::arg("expert_map") = nb::none(),
        nb::sig(
            "def select(layer: LayerSpec | DescribedWeights | DescribedMatrix, machine: Machine | "
            "str | None = None, *, backend: str = 'auto', device: str = '', max_num_tokens: int "
            "= 512, deterministic: bool = False, bf16_activations: bool = False, ep_size: int = "
            "1, ep_rank: int = 0, expert_map: list[int] | None = None) -> Selection"),
        "Chooses the backend of a layer and keeps all reasons. Reads no weight. `device`: only "
        "backends of \"cpu\", \"cuda[:n]\" or \"opencl[:n]\"; empty: of any device. "
        "`expert_map[e]`: local index of expert e, or -1.");
  m.def(
      "explain",
      [](const Selection& selection, bool all_reasons) { return explain(selection, all_reasons); },
      nb::arg("selection"), nb::arg("all_reasons") = true,
      "The selection as text: the choice, then one line per backend with all reasons. "
      "`all_reasons=False`: only the first reason, and backends of other devices in one line.");
}

}  // namespace moracle::python
