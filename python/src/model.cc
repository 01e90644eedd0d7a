#include <nanobind/ndarray.h>

#include <algorithm>

#include "calls.h"
#include "loaded_model.h"

namespace moracle::python {

std::vector<int32_t> ids_of(const LoadedModel& loaded, nb::handle text, const char* argument,
                            SpecialTokens special) {
  if (nb::isinstance<nb::str>(text)) {
    const std::string words = utf8_of(text, argument);
    return value_of(special == SpecialTokens::kNone ? loaded.tokens().encode(words)
                                                    : loaded.tokens().encode_prompt(words));
  }
  std::vector<int32_t> ids;
  if (nb::try_cast(text, ids)) return ids;
  fail_argument(argument, "a text or a list of token ids",
                "it is a " + nb::cast<std::string>(nb::str(text.type().attr("__name__"))));
}

namespace {

std::shared_ptr<LoadedModel> load(const Checkpoint& checkpoint, ModelOptions options,
                                  nb::object progress) {
  check_not_forked();
  LongCall call(std::move(progress));
  Model model = call.run([&](Progress go_on) {
    options.progress = std::move(go_on);
    return Model::load(checkpoint, options);
  });
  Result<Tokenizer> tokenizer = Tokenizer::open(checkpoint.folder());
  GenerationConfig config =
      value_of(GenerationConfig::open(checkpoint, tokenizer ? &*tokenizer : nullptr));
  auto loaded = std::make_shared<LoadedModel>(
      LoadedModel{Owned<Model>(std::move(model)), {}, {}, std::move(config)});
  if (tokenizer)
    loaded->tokenizer = *std::move(tokenizer);
  else
    loaded->no_tokenizer = tokenizer.error();
  return loaded;
}

PyModel load_model(nb::handle source, const nb::str& backend, const nb::str& quantization,
                   const nb::str& activations, const nb::str& weights, const nb::str& kv_cache,
                   const nb::str& device, int threads, bool pin, int64_t max_num_tokens,
                   int64_t gpu_memory, int64_t cpu_memory, bool deterministic,
                   const std::vector<nb::object>& adapters, const std::vector<TunedLayer>& tuned,
                   nb::object progress, bool next_tokens) {
  ModelOptions options;
  options.backend = value_of(BackendMap::parse(utf8_of(backend, "backend")));
  if (const std::string schemes = utf8_of(quantization, "quantization"); !schemes.empty())
    options.quantization = value_of(QuantizationMap::parse(schemes));
  options.activations = value_of(parse_activations(utf8_of(activations, "activations")));
  options.weights = value_of(parse_weights(utf8_of(weights, "weights")));
  options.kv_cache = value_of(parse_kv_cache(utf8_of(kv_cache, "kv_cache")));
  value_of(set_devices(options, utf8_of(device, "device")));
  options.threads = threads;
  options.pin = pin;
  options.max_num_tokens = max_num_tokens;
  options.device_memory = gpu_memory;
  options.host_memory = cpu_memory;
  options.deterministic = deterministic;
  for (const nb::object& adapter : adapters)
    options.adapters.push_back(path_of(adapter, "adapters").string());
  options.tuned = tuned;
  options.next_tokens = next_tokens;
  if (nb::isinstance<Checkpoint>(source))
    return {load(nb::cast<const Checkpoint&>(source), options, std::move(progress))};
  const Checkpoint opened = value_of(Checkpoint::open(path_of(source, "source").string()));
  return {load(opened, options, std::move(progress))};
}

// Runs one step and copies its logits; returns the end of the copy.
Result<float*> step_logits(Model& model, const Model::Step& step, float* to) {
  const DeviceLock lock =
      model.device().lock();  // another thread's forward would replace the logits
  if (Status done = model.forward({&step, 1}); !done) return done.error();
  const auto count = static_cast<int64_t>(step.tokens.size());
  for (int64_t row = 0; row < count; row += Model::kMaxLogitRows) {
    const auto logits = model.logits(row, std::min(Model::kMaxLogitRows, count - row));
    if (!logits) return logits.error();
    to = std::copy(logits->begin(), logits->end(), to);
  }
  return to;
}

// Returns logits f32 [ids.size(), vocab_size] of one sequence. Calls `go_on` only while the device
// is not held, because it waits for the GIL.
Status forward(Model& model, std::span<const int32_t> ids, int32_t adapter, float* to,
               const Progress& go_on) {
  const auto size = static_cast<int64_t>(ids.size());
  Result<KvCache> cache = model.make_cache(std::max<int64_t>(size, 1));
  if (!cache) return cache.error();
  for (int64_t first = 0; first < size; first += model.max_num_tokens()) {
    const int64_t count = std::min(model.max_num_tokens(), size - first);
    const auto next = step_logits(model, {ids.subspan(first, count), &*cache, adapter}, to);
    if (!next) return next.error();
    to = *next;
    if (!go_on(first + count, size))
      return Error{ErrorKind::kCancelled, "", "logits", "", "stopped on request"};
  }
  return {};
}

nb::object logits(const PyModel& self, nb::handle prompt, int32_t adapter) {
  Model& model = *self.loaded->model;
  const std::vector<int32_t> ids = ids_of(*self.loaded, prompt, "prompt");
  auto values = std::make_unique<float[]>(ids.size() * static_cast<size_t>(model.vocab_size()));
  LongCall call{nb::none()};
  call.run(
      [&](const Progress& go_on) { return forward(model, ids, adapter, values.get(), go_on); });
  float* const data = values.release();
  const nb::capsule owner(data,
                          [](void* memory) noexcept { delete[] static_cast<float*>(memory); });
  const size_t shape[] = {ids.size(), static_cast<size_t>(model.vocab_size())};
  return nb::cast(nb::ndarray<nb::numpy, float>(data, 2, shape, owner));
}

nb::dict measure(const PyModel& self, nb::handle text, int64_t window, int32_t adapter,
                 nb::object progress) {
  const std::vector<int32_t> ids = ids_of(*self.loaded, text, "text", SpecialTokens::kNone);
  LongCall call(std::move(progress));
  const Perplexity result = call.run([&](const Progress& go_on) {
    return perplexity(*self.loaded->model, ids, window, go_on, adapter);
  });
  nb::dict dict;
  dict["perplexity"] = result.perplexity;
  dict["nll"] = result.nll;
  dict["scored_tokens"] = result.scored_tokens;
  return dict;
}

constexpr const char* kLoadSig =
    "def load(source: Checkpoint | str | os.PathLike, *, backend: str = 'auto', quantization: str "
    "= "
    "'', activations: str = '', weights: str = 'packed', kv_cache: str = 'auto', device: str = "
    "'cpu', threads: int = 0, "
    "pin: "
    "bool = False, max_num_tokens: int = 0, gpu_memory: int = 0, cpu_memory: int = 0, "
    "deterministic: bool = False, adapters: "
    "collections.abc.Sequence[str] "
    "= (), tuned: collections.abc.Sequence[TunedLayer] = (), progress: "
    "collections.abc.Callable[[int, int], bool | None] | None = "
    "None, next_tokens: bool = False) -> Model";

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<PyModel> model(m, "Model",
                            "A checkpoint loaded on one device: tokens to logits to tokens.");
  model
      .def_static(
          "load", &load_model, nb::arg("source"), nb::kw_only(), nb::arg("backend") = "auto",
          nb::arg("quantization") = "", nb::arg("activations") = "", nb::arg("weights") = "packed",
          nb::arg("kv_cache") = "auto", nb::arg("device") = "cpu", nb::arg("threads") = 0,
          nb::arg("pin") = false, nb::arg("max_num_tokens") = 0, nb::arg("gpu_memory") = 0,
          nb::arg("cpu_memory") = 0, nb::arg("deterministic") = false,
          nb::arg("adapters") = nb::make_tuple(), nb::arg("tuned") = nb::make_tuple(),
          nb::arg("progress") = nb::none(), nb::arg("next_tokens") = false, nb::sig(kLoadSig),
          "Describes every tensor, selects a backend for every layer, then reads and packs. The "
          "options are those of `moracle run`; `gpu_memory` and `cpu_memory` are bytes, -1: what "
          "is free. `progress(done, total)` counts bytes; False stops. `next_tokens` also loads "
          "the layer "
          "for multi-token prediction, for `speculate='mtp'`.")
      .def_prop_ro("vocab_size",
                   [](const PyModel& self) { return self.loaded->model->vocab_size(); })
      .def_prop_ro("max_context",
                   [](const PyModel& self) { return self.loaded->model->max_context(); })
      .def("__repr__",
           [](const PyModel& self) {
             const Model& loaded = *self.loaded->model;
             return "<Model: " + std::to_string(loaded.weight_bytes()) + " bytes of weights on " +
                    loaded.device().name() + ", vocabulary " + std::to_string(loaded.vocab_size()) +
                    ", context " + std::to_string(loaded.max_context()) + ">";
           })
      .def_prop_ro(
          "weight_bytes", [](const PyModel& self) { return self.loaded->model->weight_bytes(); },
          "Packed weights and tables of all layers, in bytes.")
      .def_prop_ro(
          "choices",
          [](const PyModel& self) {
            nb::list choices;
            for (const Choice& choice : self.loaded->model->choices())
              choices.append(nb::make_tuple(choice.part, choice.layers, choice.selection));
            return choices;
          },
          nb::sig("def choices(self) -> list[tuple[str, list[int], Selection]]"),
          "(part, layers, selection) of each group of equal layers.")
      .def(
          "encode",
          [](const PyModel& self, const nb::str& text) {
            return value_of(self.loaded->tokens().encode(utf8_of(text, "text")));
          },
          nb::arg("text"), "Token ids of a text. Adds no special tokens.")
      .def(
          "decode",
          [](const PyModel& self, const std::vector<int32_t>& ids, bool skip_special) {
            const std::string text = value_of(self.loaded->tokens().decode(ids, skip_special));
            return nb::steal<nb::str>(
                PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
          },
          nb::arg("ids"), nb::arg("skip_special") = false, "The text of token ids.")
      .def("logits", &logits, nb::arg("prompt"), nb::kw_only(), nb::arg("adapter") = -1,
           nb::sig("def logits(self, prompt: str | collections.abc.Sequence[int], *, adapter: int "
                   "= -1) -> "
                   "numpy.ndarray"),
           "Logits f32 [num_tokens, vocab_size] of one sequence.")
      .def("perplexity", &measure, nb::arg("text"), nb::kw_only(), nb::arg("window") = 512,
           nb::arg("adapter") = -1, nb::arg("progress") = nb::none(),
           nb::sig("def perplexity(self, text: str | collections.abc.Sequence[int], *, window: int "
                   "= 512, adapter: "
                   "int = -1, progress: collections.abc.Callable[[int, int], bool | None] | None = "
                   "None) -> "
                   "dict[str, float]"),
           "{\"perplexity\", \"nll\", \"scored_tokens\"} over windows of `window` tokens.");
  bind_generation(m, model);
}

}  // namespace moracle::python
