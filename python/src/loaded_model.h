// A model with its folder's tokenizer and generation defaults.
#pragma once

#include "bindings.h"

namespace moracle::python {

struct LoadedModel {
  Owned<Model> model;
  std::optional<Tokenizer> tokenizer;
  Error no_tokenizer;  ///< why the tokenizer is missing
  GenerationConfig config;

  const Tokenizer& tokens() const {
    if (!tokenizer) throw Failure(no_tokenizer);
    return *tokenizer;
  }
};

/// The Python object. Token iterators share the model.
struct PyModel {
  std::shared_ptr<LoadedModel> loaded;
};

/// Whether to add the tokenizer's special tokens around a prompt.
enum class SpecialTokens { kAdd, kNone };

/// Converts a prompt to token ids: a text, or a sequence of ids.
std::vector<int32_t> ids_of(const LoadedModel& loaded, nb::handle text, const char* argument,
                            SpecialTokens special = SpecialTokens::kAdd);

/// Generation and TokenIterator, and the methods of Model that return them.
void bind_generation(nb::module_& m, nb::class_<PyModel>& model);

}  // namespace moracle::python
