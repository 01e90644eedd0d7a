#include "bindings.h"

namespace moracle::python {

Scheme scheme_of(nb::handle scheme) {
  if (nb::isinstance<Scheme>(scheme)) return nb::cast<Scheme>(scheme);
  if (!nb::isinstance<nb::str>(scheme))
    fail_argument("scheme", "a Scheme or its name",
                  "it is " + nb::cast<std::string>(nb::repr(scheme)));
  return value_of(parse_scheme(utf8_of(scheme, "scheme")));
}

void bind_schemes(nb::module_& m) {
  nb::class_<Scheme>(m, "Scheme",
                     "What the numbers of a layer mean: the format of weights and of activations.")
      .def(
          "__init__",
          [](Scheme* self, const nb::str& name) {
            new (self) Scheme(value_of(parse_scheme(utf8_of(name, "name"))));
          },
          nb::arg("name"), "Parses a name such as \"int4-w4a16-g128\". Errors list the grammar.")
      .def_prop_ro(
          "name", [](const Scheme& self) { return name(self); },
          "The scheme's name: \"fp8-w8a8-block128x128\".")
      .def_prop_ro(
          "description", [](const Scheme& self) { return describe(self); },
          "The scheme in words: \"int8 weights per channel, int8 activations per token, dynamic\".")
      .def_prop_ro(
          "is_quantized", [](const Scheme& self) { return self.weight.quantized(); },
          "True if the weights are not f32, f16 or bf16.")
      .def("__str__", [](const Scheme& self) { return name(self); })
      .def("__repr__", [](const Scheme& self) { return "Scheme('" + name(self) + "')"; })
      .def(
          "__eq__",
          [](const Scheme& self, nb::handle other) {
            return nb::isinstance<Scheme>(other) && self == nb::cast<Scheme>(other);
          },
          nb::arg("other").none())
      .def("__hash__", [](const Scheme& self) { return nb::hash(nb::cast(name(self))); });
  m.def(
      "online_schemes",
      [] {
        std::vector<std::string> names;
        for (const OnlineScheme& online : online_schemes()) names.emplace_back(online.name);
        return names;
      },
      "Names of the schemes to which plain weights can be quantized.");
}

}  // namespace moracle::python
