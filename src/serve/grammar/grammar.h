// Constrained decoding: computes which tokens may come next. Uses xgrammar.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "moracle/text.h"
#include "serve/grammar/token_mask.h"

namespace moracle::serve {

/// Matcher state of one sequence in its grammar.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  /// Computes the tokens that may come next, without TokenMask::settle(). Matchers of different
  /// sequences run on different threads.
  virtual Status fill(TokenMask& mask) = 0;
  /// Advances over a sampled token. Errors: a forbidden token.
  virtual Status accept(int32_t id) = 0;
};

/// A compiled grammar. Thread-safe.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual Result<std::unique_ptr<GrammarMatcher>> start() const = 0;
};

/// The source of a grammar.
struct GrammarText {
  enum class Kind { kSchema, kStructuralTag };
  Kind kind = Kind::kSchema;
  std::string text;   ///< a schema of lower_schema(), or the engine's structural tag; empty: none
  std::string place;  ///< the field of the request that has it
  bool empty() const { return text.empty(); }
};

/// Compiles grammars for one tokenizer. Thread-safe; threads compile concurrently.
class GrammarEngine {
 public:
  virtual ~GrammarEngine() = default;
  /// Errors: kInvalidArgument if the engine rejects the source.
  virtual Result<std::shared_ptr<const Grammar>> compile(const GrammarText& source) const = 0;

  /// Loads the engine from `folder` with its Python packages; empty: the folder that the build
  /// found. `stop_ids` are allowed at the end of a complete text. `tag_ids` are special tokens that
  /// grammars may hold as text. Errors: kUnsupported in a build
  /// without the engine, or if it does not load.
  static Result<std::unique_ptr<GrammarEngine>> start(const Tokenizer& tokenizer,
                                                      int64_t vocab_size,
                                                      std::span<const int32_t> stop_ids,
                                                      const std::string& folder = {},
                                                      std::span<const int32_t> tag_ids = {});
};

}  // namespace moracle::serve
