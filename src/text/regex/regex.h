// A compiled regular expression that cuts texts.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "moracle/base.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace moracle {

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  bool empty() const { return begin == end; }
};

/// A part of a text: a match of a regular expression, or the text between two matches.
struct RegexPart {
  TextRange range;
  bool matched = false;
};

/// Immutable after compiling; several threads may use one, each with its own RegexScratch.
class Regex {
 public:
  /// Compiles a pattern in the syntax of Oniguruma. Errors: kUnsupported with `need` and `fact`;
  /// the caller adds file and place.
  static Result<Regex> compile(std::string_view pattern);
  /// Matches exactly `text`.
  static Result<Regex> literal(std::string_view text);

 private:
  friend class RegexScratch;
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;
  explicit Regex(Code code) : code_(std::move(code)) {}
  static Result<Regex> compile_pcre2(std::string_view pattern);
  Code code_;
};

/// Memory of one thread for matching one Regex. The Regex must outlive it.
class RegexScratch {
 public:
  explicit RegexScratch(const Regex& regex);

  /// Cuts all of `text`, which must be valid UTF-8, into matches and the parts between them. The
  /// expression sees the text on both sides of a part, but nothing outside of `text`. Errors:
  /// kUnsupported if PCRE2 gives up, so that no text takes unbounded time or memory.
  Status cut(std::string_view text, std::vector<RegexPart>& parts);

 private:
  struct FreeData {
    void operator()(pcre2_real_match_data_8* data) const;
  };
  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const;
  };
  int match(std::string_view text, size_t from);
  const Regex* regex_;
  std::unique_ptr<pcre2_real_match_data_8, FreeData> data_;
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> context_;
};

}  // namespace moracle
