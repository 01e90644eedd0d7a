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

/// A part of a text that a regular expression matched, or one between two matches.
struct RegexPart {
  TextRange range;
  bool matched = false;
};

/// Immutable after compiling; several threads may use one, each with its own RegexScratch.
class Regex {
 public:
  /// From a pattern in Oniguruma's syntax. Errors: kUnsupported with `need` and `fact`; file and
  /// place are the caller's.
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

/// The memory that one thread needs for matching one Regex, which must outlive it.
class RegexScratch {
 public:
  explicit RegexScratch(const Regex& regex);

  /// Cuts all of `text`, valid UTF-8, into matches and what lies between them. The text on both
  /// sides of a part is seen by the expression, that outside of `text` is not.
  /// Errors: kUnsupported where PCRE2 gives up, so that no text can take unbounded time or memory.
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
