// Answers of a given form: which tokens may follow. The engine behind it is xgrammar.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "moracle/text.h"

namespace moracle::serve {

/// The place of one text in its grammar.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  /// Sets the logits of tokens that must not follow to negative infinity.
  virtual Status mask(std::span<float> logits) = 0;
  /// Moves over a token. Errors: one that must not follow.
  virtual Status accept(int32_t id) = 0;
};

/// A compiled grammar. Safe to share between threads.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual Result<std::unique_ptr<GrammarMatcher>> start() const = 0;
};

/// Compiles grammars for one tokenizer. Safe to share between threads, which do not wait for each
/// other.
class GrammarEngine {
 public:
  virtual ~GrammarEngine() = default;
  /// Texts of JSON that a schema of lower_schema() describes. Errors: kInvalidArgument if the
  /// engine refuses it.
  virtual Result<std::shared_ptr<const Grammar>> json_schema(const std::string& schema) const = 0;

  /// Loads the engine from `folder`, which holds its Python packages; empty: the folder in which
  /// the build found them. `stop_ids` may follow a whole text. Errors: kUnsupported in a build
  /// without the engine, or if it does not load.
  static Result<std::unique_ptr<GrammarEngine>> start(const Tokenizer& tokenizer,
                                                      int64_t vocab_size,
                                                      std::span<const int32_t> stop_ids,
                                                      const std::string& folder = {});
};

}  // namespace moracle::serve
