#include "bindings.h"
#include "calls.h"

namespace moracle::python {
namespace {

using Path = std::filesystem::path;

nb::dict report_of(const QuantizeReport& report) {
  std::vector<std::string> schemes;
  for (const Scheme& scheme : report.schemes) schemes.push_back(name(scheme));
  nb::dict dict;
  dict["schemes"] = schemes;
  dict["tensors_quantized"] = report.num_quantized;
  dict["tensors_left"] = report.num_left;
  dict["bytes_before"] = report.bytes_before;
  dict["bytes_after"] = report.bytes_after;
  dict["files"] = report.files;
  return dict;
}

nb::dict report_of(const GgufReport& report) {
  nb::list types, fallbacks;
  for (const GgufReport::Type& type : report.types) {
    nb::dict one;
    one["type"] = std::string(name(type.type));
    one["tensors"] = type.num_tensors;
    one["weights"] = type.num_weights;
    one["bytes"] = type.bytes;
    types.append(one);
  }
  for (const GgufReport::Fallback& fallback : report.fallbacks) {
    nb::dict one;
    one["tensor"] = fallback.tensor;
    one["requested"] = std::string(name(fallback.requested));
    one["written"] = std::string(name(fallback.written));
    one["columns"] = fallback.columns;
    fallbacks.append(one);
  }
  nb::dict dict;
  dict["architecture"] = report.architecture;
  dict["types"] = types;
  dict["fallbacks"] = fallbacks;
  dict["left_out"] = report.left_out;
  dict["bytes_before"] = report.bytes_before;
  dict["bytes_after"] = report.bytes_after;
  return dict;
}

// The library's error names the option `quantization`.
Error named_scheme(Error error) {
  if (error.place == "quantization") error.place = "scheme";
  return error;
}

nb::dict write_gguf_file(const Checkpoint& from, const std::string& types, const std::string& file,
                         const QuantizeOptions& options, nb::object progress) {
  if (options.max_shard_bytes != QuantizeOptions().max_shard_bytes)
    fail_argument("max_shard_bytes", "another format than gguf, which is one file",
                  "the format is gguf");
  LongCall call(std::move(progress));
  return report_of(call.run([&](Progress go_on) -> Result<GgufReport> {
    const Result<GgufTypes> parsed = GgufTypes::parse(types);
    if (!parsed) return named_scheme(parsed.error());
    return write_gguf(from, *parsed, file, go_on);
  }));
}

Checkpoint open(const Path& folder) {
  const nb::gil_scoped_release released;
  return value_of(Checkpoint::open(folder.string()));
}

void bind_quantize(nb::module_& m) {
  m.def(
      "quantize",
      [](nb::handle checkpoint, const nb::str& scheme, nb::handle output, const nb::str& format,
         int64_t max_shard_bytes, nb::object progress) {
        std::optional<Checkpoint> opened;
        if (!nb::isinstance<Checkpoint>(checkpoint))
          opened = open(path_of(checkpoint, "checkpoint"));
        const Checkpoint& from = opened ? *opened : nb::cast<const Checkpoint&>(checkpoint);
        QuantizeOptions options{utf8_of(format, "format"), max_shard_bytes, {}};
        const std::string folder = path_of(output, "output").string();
        const std::string schemes = utf8_of(scheme, "scheme");
        if (options.format == "gguf")
          return write_gguf_file(from, schemes, folder, options, std::move(progress));
        LongCall call(std::move(progress));
        const auto write = [&](Progress go_on) -> Result<QuantizeReport> {
          options.progress = std::move(go_on);
          const Result<QuantizationMap> map = QuantizationMap::parse(schemes);
          if (!map) return named_scheme(map.error());
          Result<QuantizeReport> report = quantize(from, *map, folder, options);
          if (!report) return named_scheme(report.error());
          return report;
        };
        return report_of(call.run(write));
      },
      nb::arg("checkpoint"), nb::arg("scheme"), nb::arg("output"), nb::kw_only(),
      nb::arg("format") = "compressed-tensors", nb::arg("max_shard_bytes") = 5'000'000'000,
      nb::arg("progress") = nb::none(),
      nb::sig("def quantize(checkpoint: Checkpoint | str | os.PathLike, scheme: str, output: str | "
              "os.PathLike, *, format: str = 'compressed-tensors', max_shard_bytes: int = "
              "5000000000, progress: collections.abc.Callable[[int, int], bool | None] | None = "
              "None) -> dict[str, "
              "typing.Any]"),
      "Writes a plain checkpoint quantized to the new folder `output`. `scheme`: one of "
      "online_schemes(), or \"pattern=scheme,pattern=none\". `progress(done, total)` counts bytes; "
      "False stops. Returns schemes, tensors_quantized, tensors_left, bytes_before, bytes_after "
      "and "
      "files. format \"gguf\" writes the file `output`, which llama.cpp loads; `scheme` then has "
      "GGUF's types (\"q4_k\"), and the result architecture, types, fallbacks, left_out, "
      "bytes_before and bytes_after.");
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  nb::class_<Checkpoint>(m, "Checkpoint",
                         "An opened and checked folder with config.json and safetensors files.")
      .def(
          "__init__",
          [](Checkpoint* self, nb::handle folder) {
            new (self) Checkpoint(open(path_of(folder, "folder")));
          },
          nb::arg("folder"), nb::sig("def __init__(self, folder: str | os.PathLike) -> None"),
          "Errors: a missing or broken file; a quant_method without a reader.")
      .def_prop_ro("folder", [](const Checkpoint& self) { return self.folder(); })
      .def_prop_ro(
          "architecture", [](const Checkpoint& self) { return self.architecture(); },
          "The model class from config.json: \"Qwen3MoeForCausalLM\".")
      .def_prop_ro(
          "producer", [](const Checkpoint& self) { return std::string(self.producer()); },
          "The tool that wrote the tensors: \"gptq\", \"plain\".")
      .def_prop_ro("num_layers", &Checkpoint::num_layers)
      .def_prop_ro("moe_layers", &Checkpoint::moe_layers, "Indices of the layers with experts.")
      .def_prop_ro("total_bytes", &Checkpoint::total_bytes, "Size of all tensors, in bytes.")
      .def(
          "moe_layer",
          [](const Checkpoint& self, int64_t layer, const nb::str& quantization) {
            QuantizationMap map;
            const std::string text = utf8_of(quantization, "quantization");
            if (!text.empty()) map = value_of(QuantizationMap::parse(text));
            return Consumable(value_of(self.moe_layer(layer, map)));
          },
          nb::arg("layer"), nb::arg("quantization") = "",
          "The experts of one layer. `quantization`: an online scheme for plain weights.")
      .def(
          "linear",
          [](const Checkpoint& self, const std::vector<nb::str>& modules) {
            std::vector<std::string> names;
            for (const nb::str& module : modules) names.push_back(utf8_of(module, "modules"));
            return Consumable(value_of(self.linear(names)));
          },
          nb::arg("modules"), "The linear layers `modules`, stacked row-wise into one matrix.")
      .def("__repr__", [](const Checkpoint& self) {
        return "<Checkpoint " + self.folder() + ": " + self.architecture() + ", " +
               std::string(self.producer()) + ">";
      });
  bind_quantize(m);
}

}  // namespace moracle::python
