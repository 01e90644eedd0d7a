// Regular expressions, matched by Oniguruma within limits of time and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "moracle/base.h"

struct re_pattern_buffer;
struct re_registers;
struct OnigMatchParamStruct;

namespace moracle {

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  bool empty() const { return begin == end; }
};

/// A part of a text: a match of a regular expression, or the text between two matches.
struct RegexSpan {
  TextRange range;
  bool matched = false;
};

/// The language of a pattern.
enum class RegexSyntax : uint8_t {
  kOniguruma,  ///< Oniguruma's default syntax, which tokenizer.json files use
  kPython,     ///< Python's `re` without flags
  kLiteral,    ///< every character matches itself
};

/// Immutable after compiling; several threads may use one, each with its own RegexScratch.
class Regex {
 public:
  /// Errors: kUnsupported with `need` and `fact`; the caller adds file and place.
  static Result<Regex> compile(std::string_view pattern, RegexSyntax syntax);

 private:
  friend class RegexScratch;
  struct FreeCode {
    void operator()(re_pattern_buffer* code) const;
  };
  using Code = std::unique_ptr<re_pattern_buffer, FreeCode>;
  explicit Regex(Code code) : code_(std::move(code)) {}
  Code code_;
};

/// Memory of one thread for matching one Regex. The Regex must outlive it.
class RegexScratch {
 public:
  explicit RegexScratch(const Regex& regex);

  /// Cuts all of `text`, which must be valid UTF-8, into matches and the parts between them. The
  /// expression sees the text on both sides of a part, but nothing outside of `text`. Errors:
  /// kUnsupported if the expression backtracks too often or too deep, or if matches overlap;
  /// kCancelled.
  Status cut(std::string_view text, std::vector<RegexSpan>& spans, const Progress& progress = {});

  /// Whether the expression matches at the start of `text`. Returns false if that takes more than
  /// `tries` backtracks, or if `text` is not UTF-8.
  bool matches_start(std::string_view text, size_t tries);

 private:
  struct FreeRegion {
    void operator()(re_registers* region) const;
  };
  struct FreeParam {
    void operator()(OnigMatchParamStruct* param) const;
  };
  int search(std::string_view text, size_t from, const std::function<bool()>& goes_on);
  void limit(size_t tries);

  const Regex* regex_;
  std::unique_ptr<re_registers, FreeRegion> region_;
  std::unique_ptr<OnigMatchParamStruct, FreeParam> param_;
  size_t spare_tries_;  ///< for searches that take more than the usual number
};

}  // namespace moracle
