// Model.generate and Model.stream.
#include <nanobind/stl/unique_ptr.h>

#include "calls.h"
#include "token_iterator.h"

namespace moracle::python {
namespace {

GenerateOptions options_of(const LoadedModel& loaded, int64_t max_tokens,
                           std::optional<float> temperature, std::optional<int64_t> top_k,
                           std::optional<float> top_p, std::optional<float> min_p, uint64_t seed,
                           bool ignore_eos, int32_t adapter) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampling = loaded.config.sampling;
  if (temperature) options.sampling.temperature = *temperature;
  if (top_k) options.sampling.top_k = *top_k;
  if (top_p) options.sampling.top_p = *top_p;
  if (min_p) options.sampling.min_p = *min_p;
  options.sampling.seed = seed;
  value_of(check(options.sampling));
  options.adapter = adapter;
  if (!ignore_eos) options.stop_ids = loaded.config.eos_ids;
  return options;
}

nb::object text_of(const LoadedModel& loaded, const Generation& generation) {
  if (!loaded.tokenizer) return nb::none();
  TokenStream stream(*loaded.tokenizer);
  std::string text;
  for (const int32_t id : generation.ids) text += value_of(stream.push(id));
  return nb::cast(text + stream.finish());
}

struct PyGeneration {
  Generation generation;
  nb::object text;
};

void def_generation(nb::class_<PyGeneration>& bound) {
  bound
      .def_prop_ro(
          "ids", [](const PyGeneration& self) { return self.generation.ids; },
          "Token ids, including the stop id.")
      .def_prop_ro(
          "text", [](const PyGeneration& self) { return self.text; },
          nb::sig("def text(self) -> str | None"),
          "The text without special tokens; None if the folder has no tokenizer.")
      .def_prop_ro(
          "stop_reason", [](const PyGeneration& self) { return self.generation.stop_reason; },
          "\"eos\" or \"length\"")
      .def_prop_ro("prompt_seconds",
                   [](const PyGeneration& self) { return self.generation.prompt_seconds; })
      .def_prop_ro("generation_seconds",
                   [](const PyGeneration& self) { return self.generation.generation_seconds; })
      .def("__str__", [](const PyGeneration& self) { return nb::str(self.text); })
      .def("__repr__", [](const PyGeneration& self) {
        return "<Generation: " + std::to_string(self.generation.ids.size()) +
               " tokens, stopped by " + self.generation.stop_reason + ": " +
               nb::cast<std::string>(nb::repr(self.text)) + ">";
      });
}

PyGeneration generate_all(const PyModel& self, nb::handle prompt, int64_t max_tokens,
                          std::optional<float> temperature, std::optional<int64_t> top_k,
                          std::optional<float> top_p, std::optional<float> min_p, uint64_t seed,
                          bool ignore_eos, int32_t adapter) {
  const LoadedModel& loaded = *self.loaded;
  Model& model = *loaded.model;
  const std::vector<int32_t> ids = ids_of(loaded, prompt, "prompt");
  GenerateOptions options =
      options_of(loaded, max_tokens, temperature, top_k, top_p, min_p, seed, ignore_eos, adapter);
  LongCall call{nb::none()};
  Generation generation = call.run([&](const Progress& go_on) {
    options.on_token = [&](int32_t) { return go_on(0, 0); };
    options.on_prompt = go_on;
    return generate(model, ids, options);
  });
  nb::object text = text_of(loaded, generation);
  return {std::move(generation), std::move(text)};
}

std::unique_ptr<TokenIterator> stream(const PyModel& self, nb::handle prompt, int64_t max_tokens,
                                      std::optional<float> temperature,
                                      std::optional<int64_t> top_k, std::optional<float> top_p,
                                      std::optional<float> min_p, uint64_t seed, bool ignore_eos,
                                      int32_t adapter) {
  const bool as_text = nb::isinstance<nb::str>(prompt);
  return std::make_unique<TokenIterator>(self.loaded, ids_of(*self.loaded, prompt, "prompt"),
                                         options_of(*self.loaded, max_tokens, temperature, top_k,
                                                    top_p, min_p, seed, ignore_eos, adapter),
                                         as_text);
}

std::string signature(const char* name, const char* result) {
  return std::string("def ") + name +
         "(self, prompt: str | collections.abc.Sequence[int], *, max_tokens: int = 128, "
         "temperature: float | None "
         "= "
         "None, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, "
         "seed: int = 0, ignore_eos: bool = False, adapter: int = -1) -> " +
         result;
}

template <class Function>
void def_generate(nb::class_<PyModel>& model, const char* name, Function function,
                  const char* result, const char* text) {
  const std::string sig = signature(name, result);
  model.def(name, function, nb::arg("prompt"), nb::kw_only(), nb::arg("max_tokens") = 128,
            nb::arg("temperature") = nb::none(), nb::arg("top_k") = nb::none(),
            nb::arg("top_p") = nb::none(), nb::arg("min_p") = nb::none(), nb::arg("seed") = 0,
            nb::arg("ignore_eos") = false, nb::arg("adapter") = -1, nb::sig(sig.c_str()), text);
}

}  // namespace

void bind_generation(nb::module_& m, nb::class_<PyModel>& model) {
  nb::class_<PyGeneration> generation(m, "Generation", "The tokens that continue a prompt.");
  def_generation(generation);
  nb::class_<TokenIterator>(m, "TokenIterator", "Tokens of Model.stream, as they come.")
      .def(
          "__iter__", [](nb::object self) { return self; },
          nb::sig("def __iter__(self) -> TokenIterator"))
      .def("__next__", &TokenIterator::next, nb::sig("def __next__(self) -> str | int"))
      .def("close", &TokenIterator::close,
           "Stops the generation. Deleting the iterator does so too.")
      .def_prop_ro("stop_reason", &TokenIterator::stop_reason,
                   "\"eos\", \"length\" or \"cancelled\"; empty while tokens come.")
      .def("__repr__", [](TokenIterator& self) {
        const std::string reason = self.stop_reason();
        return "<TokenIterator: " + (reason.empty() ? "running" : reason) + ">";
      });
  def_generate(model, "generate", &generate_all, "Generation",
               "Continues a text or token ids. Options that are None follow the model's "
               "generation_config.json; temperature 0 is greedy. Ctrl-C stops.");
  def_generate(model, "stream", &stream, "TokenIterator",
               "The same, token by token: pieces of text for a text, else token ids.");
}

}  // namespace moracle::python
