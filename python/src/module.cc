// The extension moracle._moracle: thin bindings of C++ objects, without logic in Python.
#include "bindings.h"

NB_MODULE(_moracle, m) {
  using namespace moracle::python;
  m.doc() = "Quantized fused Mixture-of-Experts.";
  // At exit torch and engines still hold objects of the module; the system frees them.
  nb::set_leak_warnings(false);
  m.attr("__version__") = MORACLE_VERSION;
  bind_errors(m);
  bind_schemes(m);
  bind_layers(m);
  bind_oracle(m);
  bind_checkpoint(m);
  bind_device(m);
  bind_moe(m);
  bind_linear(m);
  bind_experts(m);
  bind_model(m);
  bind_measuring(m);
}
