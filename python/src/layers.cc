#include "bindings.h"

namespace moracle::python {
namespace {

void bind_spec(nb::module_& m) {
  nb::class_<LayerSpec>(m, "LayerSpec",
                        "The shape of a layer's experts, or of one linear layer, without weights.")
      .def(
          "__init__",
          [](LayerSpec* self, int64_t num_experts, int64_t hidden_size, int64_t intermediate_size,
             int64_t top_k, nb::handle scheme, const nb::str& activation, float alpha, float beta,
             float limit, bool bias, bool weight_on_input) {
            LayerSpec spec{.name = "experts",
                           .num_experts = num_experts,
                           .hidden_size = hidden_size,
                           .intermediate_size = intermediate_size,
                           .top_k = top_k};
            spec.activation = {value_of(parse_activation(utf8_of(activation, "activation"))), alpha,
                               beta, limit};
            spec.routing.weight_on_input = weight_on_input;
            spec.scheme = scheme_of(scheme);
            spec.bias = bias;
            new (self) LayerSpec(std::move(spec));
          },
          nb::kw_only(), nb::arg("num_experts"), nb::arg("hidden_size"),
          nb::arg("intermediate_size"), nb::arg("top_k"), nb::arg("scheme") = "bf16",
          nb::arg("activation") = "silu", nb::arg("alpha") = 1.702f, nb::arg("beta") = 1.f,
          nb::arg("limit") = 0.f, nb::arg("bias") = false, nb::arg("weight_on_input") = false,
          nb::sig("def __init__(self, *, num_experts: int, hidden_size: int, intermediate_size: "
                  "int, top_k: int, scheme: Scheme | str = 'bf16', activation: str = 'silu', "
                  "alpha: float = 1.702, beta: float = 1.0, limit: float = 0.0, bias: bool = "
                  "False, weight_on_input: bool = False) -> None"))
      .def_static(
          "linear",
          [](int64_t input_size, int64_t output_size, nb::handle scheme, bool bias) {
            return LayerSpec{.name = "linear",
                             .linear = true,
                             .hidden_size = input_size,
                             .intermediate_size = output_size,
                             .scheme = scheme_of(scheme),
                             .bias = bias};
          },
          nb::kw_only(), nb::arg("input_size"), nb::arg("output_size"), nb::arg("scheme") = "bf16",
          nb::arg("bias") = false,
          nb::sig("def linear(*, input_size: int, output_size: int, scheme: Scheme | str = 'bf16', "
                  "bias: bool = False) -> LayerSpec"),
          "The shape of one linear layer.")
      .def_ro("name", &LayerSpec::name)
      .def_ro("is_linear", &LayerSpec::linear, "True for one linear layer instead of experts.")
      .def_ro("num_experts", &LayerSpec::num_experts)
      .def_ro("hidden_size", &LayerSpec::hidden_size)
      .def_ro("intermediate_size", &LayerSpec::intermediate_size)
      .def_ro("top_k", &LayerSpec::top_k)
      .def_ro("scheme", &LayerSpec::scheme)
      .def_ro("bias", &LayerSpec::bias)
      .def_prop_ro(
          "activation",
          [](const LayerSpec& self) { return std::string(name(self.activation.function)); })
      .def("__str__", [](const LayerSpec& self) { return describe(self); })
      .def("__repr__", [](const LayerSpec& self) { return "<LayerSpec: " + describe(self) + ">"; });
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_spec(m);
  using Experts = Consumable<DescribedWeights>;
  nb::class_<Experts>(m, "DescribedWeights",
                      "The experts of one layer, described but not read. FusedMoe consumes them.")
      .def_prop_ro("spec", [](const Experts& self) { return self.get().spec; })
      .def_prop_ro(
          "tensors",
          [](const Experts& self) {
            std::vector<std::string> names = self.get().w13.tensors();
            for (std::string& name : self.get().w2.tensors()) names.push_back(std::move(name));
            return names;
          },
          "Names of the tensors in the file.")
      .def_prop_ro(
          "source_bytes",
          [](const Experts& self) {
            return self.get().w13.source_bytes() + self.get().w2.source_bytes();
          },
          "Size in the file, in bytes.")
      .def("__repr__",
           [](const Experts& self) {
             if (self.consumed()) return std::string("<DescribedWeights: consumed>");
             return "<DescribedWeights: " + describe(self.get().spec) + ">";
           })
      .def(
          "quantize",
          [](Experts& self, const nb::str& scheme) {
            const Scheme online = value_of(parse_online_scheme(utf8_of(scheme, "scheme")));
            return Experts(value_of(quantize(self.take(), online)));
          },
          nb::arg("scheme"),
          "The same experts, quantized when they are read. Consumes these. `scheme`: one of "
          "online_schemes().");

  using Matrix = Consumable<DescribedMatrix>;
  nb::class_<Matrix>(m, "DescribedMatrix",
                     "One linear layer, described but not read. Linear consumes it.")
      .def_prop_ro("scheme", [](const Matrix& self) { return self.get().scheme(); })
      .def_prop_ro(
          "shape",
          [](const Matrix& self) {
            return nb::make_tuple(self.get().shape().n, self.get().shape().k);
          },
          "(output size, input size)")
      .def_prop_ro("tensors", [](const Matrix& self) { return self.get().tensors(); })
      .def_prop_ro("spec", [](const Matrix& self) { return linear_spec("linear", self.get()); })
      .def("__repr__", [](const Matrix& self) {
        if (self.consumed()) return std::string("<DescribedMatrix: consumed>");
        return "<DescribedMatrix: " + describe(linear_spec("linear", self.get())) + ">";
      });
}

}  // namespace moracle::python
