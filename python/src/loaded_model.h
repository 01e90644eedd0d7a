// A model with what its folder says about text: tokenizer and generation defaults.
#pragma once

#include "bindings.h"

namespace moracle::python {

struct LoadedModel {
  Owned<Model> model;
  std::optional<Tokenizer> tokenizer;
  Error no_tokenizer;  ///< why there is none
  GenerationConfig config;

  const Tokenizer& tokens() const {
    if (!tokenizer) throw Failure(no_tokenizer);
    return *tokenizer;
  }
};

/// The object in Python. Iterators of generated tokens share the model.
struct PyModel {
  std::shared_ptr<LoadedModel> loaded;
};

/// What goes around a text: what the tokenizer's file says, as before a prompt, or nothing.
enum class SpecialTokens { kAdd, kNone };

/// Token ids of a prompt: encoded text, or a sequence of ids.
std::vector<int32_t> ids_of(const LoadedModel& loaded, nb::handle text, const char* argument,
                            SpecialTokens special = SpecialTokens::kAdd);

/// Generation and TokenIterator, and the methods of Model that return them.
void bind_generation(nb::module_& m, nb::class_<PyModel>& model);

}  // namespace moracle::python
