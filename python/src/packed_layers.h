// What FusedMoe and Linear share: how they are made, and their plans.
#pragma once

#include "bindings.h"
#include "calls.h"

namespace moracle::python {

template <class Weights, class Make>
auto made(Consumable<Weights>& weights, nb::object progress, const Make& make) {
  check_not_forked();
  LongCall call(std::move(progress));
  Weights taken = weights.take();
  return call.run([&](Progress go_on) { return make(std::move(taken), std::move(go_on)); });
}

inline Selection selection_of(nb::handle selection, const LayerSpec& spec, const Device& device) {
  if (nb::isinstance<Selection>(selection)) return nb::cast<Selection>(selection);
  Request request;
  request.layer = spec;
  request.platform = device.platform();
  return select(request, Machine::here());
}

inline constexpr const char* kProgressSig =
    "progress: collections.abc.Callable[[int, int], bool | None] | None = None) -> None";

template <class T, class Class>
void bind_plan(Class& bound, const char* type) {
  bound
      .def_prop_ro("backend",
                   [](const T& self) { return std::string(name(*self.layer->plan().backend)); })
      .def_prop_ro("spec", [](const T& self) { return self.layer->plan().layer; })
      .def_prop_ro("max_num_tokens",
                   [](const T& self) { return self.layer->plan().max_num_tokens; })
      .def_prop_ro(
          "weight_bytes", [](const T& self) { return self.layer->weight_bytes(); },
          "Packed weights, in bytes.")
      .def_prop_ro("device", [](const T& self) { return self.device->name(); })
      .def(
          "describe", [](const T& self) { return describe(self.layer->plan()); },
          "The plan as text: layout, sizes, and every kernel that may run.")
      .def("__repr__", [type](const T& self) {
        return "<" + std::string(type) + ": " + describe(self.layer->plan().layer) + " on " +
               std::string(name(*self.layer->plan().backend)) + ">";
      });
}

}  // namespace moracle::python
