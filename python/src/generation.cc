// Model.generate and Model.stream.
#include <nanobind/stl/unique_ptr.h>

#include "calls.h"
#include "models/generation/logit_edits.h"
#include "token_iterator.h"

namespace moracle::python {
namespace {

// Keyword arguments of generate and stream. None counts as absent.
class GenerateArguments {
 public:
  GenerateArguments(const LoadedModel& loaded, const nb::kwargs& given)
      : stops(loaded.config.stop_strings), given_(given) {
    const GenerationConfig& config = loaded.config;
    options.max_tokens = config.max_tokens.value_or(128);
    options.sampling = config.sampling;
    options.edits = config.edits;
    SamplingOptions& sampling = options.sampling;
    LogitEdits& edits = options.edits;
    bool ignore_eos = false;
    std::string speculate = "off";
    std::vector<std::string> words;
    take("max_tokens", "an int", options.max_tokens);
    take("temperature", "a float", sampling.temperature);
    take("top_k", "an int", sampling.top_k);
    take("top_p", "a float", sampling.top_p);
    take("min_p", "a float", sampling.min_p);
    take("typical_p", "a float", sampling.typical_p);
    take("seed", "an int", sampling.seed);
    take("repetition_penalty", "a float", edits.repetition_penalty);
    take("no_repeat_ngram_size", "an int", edits.no_repeat_ngram_size);
    if (take("min_tokens", "an int", edits.min_tokens)) edits.min_length = 0;
    take("suppress_tokens", "a list of ints", edits.suppress_tokens);
    take("begin_suppress_tokens", "a list of ints", edits.begin_suppress_tokens);
    if (take("bad_words", "a list of strings", words)) edits.bad_words_ids = runs_of(words, loaded);
    take("stop", "a list of strings", stops);
    take("stop_token_ids", "a list of ints", options.stop_ids);
    take("ignore_eos", "a bool", ignore_eos);
    take("adapter", "an int", options.adapter);
    take("speculate", "a str", speculate);
    take("max_drafts", "an int", options.speculation.max_drafts);
    if (num_taken_ != given.size()) throw nb::type_error("an argument has an unknown name");
    if (!ignore_eos)
      options.stop_ids.insert(options.stop_ids.end(), config.eos_ids.begin(), config.eos_ids.end());
    options.speculation.drafter = value_of(parse_drafter(speculate));
    value_of(check(options.speculation));
    value_of(check(sampling));
    value_of(check(edits));
  }

  GenerateOptions options;
  std::vector<std::string> stops;

 private:
  template <class T>
  bool take(const char* name, const char* need, T& value) {
    if (!given_.contains(name)) return false;
    ++num_taken_;
    const nb::object object = given_[name];
    if (object.is_none()) return false;
    if (nb::try_cast<T>(object, value)) return true;
    throw nb::type_error((std::string(name) + ": needs " + need).c_str());
  }
  static std::vector<std::vector<int32_t>> runs_of(const std::vector<std::string>& words,
                                                   const LoadedModel& loaded) {
    std::vector<std::vector<int32_t>> runs;
    for (const std::string& word : words) {
      for (std::vector<int32_t>& run : value_of(runs_of_word(loaded.tokens(), word)))
        runs.push_back(std::move(run));
    }
    return runs;
  }

  const nb::kwargs& given_;
  size_t num_taken_ = 0;
};

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
          "\"eos\", \"stop\" or \"length\"")
      .def_prop_ro("prompt_seconds",
                   [](const PyGeneration& self) { return self.generation.prompt_seconds; })
      .def_prop_ro("generation_seconds",
                   [](const PyGeneration& self) { return self.generation.generation_seconds; })
      .def_prop_ro(
          "drafted", [](const PyGeneration& self) { return self.generation.speculation.drafted; },
          "Tokens that were drafted (speculate=).")
      .def_prop_ro(
          "accepted", [](const PyGeneration& self) { return self.generation.speculation.accepted; },
          "Drafts that became part of the text.")
      .def("__str__", [](const PyGeneration& self) { return nb::str(self.text); })
      .def("__repr__", [](const PyGeneration& self) {
        return "<Generation: " + std::to_string(self.generation.ids.size()) +
               " tokens, stopped by " + self.generation.stop_reason + ": " +
               nb::cast<std::string>(nb::repr(self.text)) + ">";
      });
}

PyGeneration generate_all(const PyModel& self, nb::handle prompt, const nb::kwargs& given) {
  const LoadedModel& loaded = *self.loaded;
  Model& model = *loaded.model;
  const std::vector<int32_t> ids = ids_of(loaded, prompt, "prompt");
  GenerateArguments arguments(loaded, given);
  std::optional<StoppingTokenStream> stream;
  if (loaded.tokenizer) stream.emplace(*loaded.tokenizer, arguments.stops);
  std::string text;
  Status decoded;
  LongCall call{nb::none()};
  Generation generation = call.run([&](const Progress& go_on) {
    arguments.options.on_token = [&](int32_t id) {
      if (!stream || !decoded) return go_on(0, 0);
      if (const Result<std::string> piece = stream->push(id); piece)
        text += *piece;
      else
        decoded = piece.error();
      return go_on(0, 0) && !stream->stopped();
    };
    arguments.options.on_prompt = go_on;
    return generate(model, ids, arguments.options);
  });
  if (!stream) return {std::move(generation), nb::none()};
  value_of(std::move(decoded));
  text += stream->finish();
  if (stream->stopped()) generation.stop_reason = "stop";
  return {std::move(generation), nb::cast(text)};
}

std::unique_ptr<TokenIterator> stream(const PyModel& self, nb::handle prompt,
                                      const nb::kwargs& given) {
  const bool as_text = nb::isinstance<nb::str>(prompt);
  std::vector<int32_t> ids = ids_of(*self.loaded, prompt, "prompt");
  GenerateArguments arguments(*self.loaded, given);
  return std::make_unique<TokenIterator>(self.loaded, std::move(ids), std::move(arguments.options),
                                         std::move(arguments.stops), as_text);
}

std::string signature(const char* name, const char* result) {
  return std::string("def ") + name +
         "(self, prompt: str | collections.abc.Sequence[int], *, max_tokens: int | None = None, "
         "temperature: float | None = None, top_k: int | None = None, top_p: float | None = None, "
         "min_p: float | None = None, typical_p: float | None = None, seed: int = 0, "
         "repetition_penalty: float | None = None, no_repeat_ngram_size: int | None = None, "
         "min_tokens: int | None = None, suppress_tokens: list[int] | None = None, "
         "begin_suppress_tokens: list[int] | None = None, bad_words: list[str] | None = None, "
         "stop: list[str] | None = None, stop_token_ids: list[int] | None = None, "
         "ignore_eos: bool = False, adapter: int = -1, speculate: str = 'off', "
         "max_drafts: int = 8) -> " +
         result;
}

template <class Function>
void def_generate(nb::class_<PyModel>& model, const char* name, Function function,
                  const char* result, const char* text) {
  const std::string sig = signature(name, result);
  model.def(name, function, nb::arg("prompt"), nb::arg("kwargs"), nb::sig(sig.c_str()), text);
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
                   "\"eos\", \"stop\", \"length\" or \"cancelled\"; empty while tokens come.")
      .def("__repr__", [](TokenIterator& self) {
        const std::string reason = self.stop_reason();
        return "<TokenIterator: " + (reason.empty() ? "running" : reason) + ">";
      });
  def_generate(model, "generate", &generate_all, "Generation",
               "Continues a text or token ids. Options that are None follow the model's "
               "generation_config.json, max_tokens else 128; temperature 0 is greedy. Texts end "
               "before a stop string. Ctrl-C stops.");
  def_generate(model, "stream", &stream, "TokenIterator",
               "The same, token by token: pieces of text for a text, else token ids.");
}

}  // namespace moracle::python
