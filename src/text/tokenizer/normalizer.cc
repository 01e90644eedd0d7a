#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

constexpr int kMaxNormalizers = 8;
/// Bound memory: several Replace steps can multiply a long content.
constexpr size_t kMostGrowth = 64, kSmallText = 1 << 20;

std::vector<utf8proc_int32_t> decompose(std::string_view text, utf8proc_option_t options) {
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  std::array<utf8proc_int32_t, 64>
      decomposed;  // the longest decomposition (U+FDFA) has 18 code points
  int boundary = 0;
  while (!text.empty()) {
    const Utf8Char next = first_char(text);
    text.remove_prefix(next.length);
    const auto code = static_cast<utf8proc_int32_t>(next.code);
    const auto count =
        utf8proc_decompose_char(code, decomposed.data(), decomposed.size(), options, &boundary);
    if (count < 0 || static_cast<size_t>(count) > decomposed.size()) {
      codes.push_back(code);
    } else {
      codes.insert(codes.end(), decomposed.begin(), decomposed.begin() + count);
    }
  }
  return codes;
}

/// Sorts each run of combining marks by class in O(n log n). utf8proc's bubble sort takes quadratic
/// time: a hostile text could stall a server.
void put_in_canonical_order(std::vector<utf8proc_int32_t>& codes) {
  const auto rank = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end =
        std::find_if(begin, codes.end(), [&](utf8proc_int32_t code) { return rank(code) == 0; });
    std::stable_sort(begin, end, [&](auto left, auto right) { return rank(left) < rank(right); });
    begin = end == codes.end() ? end : end + 1;
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

Result<Normalizer> Normalizer::parse(const JsonField& field) {
  Normalizer normalizer;
  MORACLE_CHECK(normalizer.add(field, 0));
  return normalizer;
}

Status Normalizer::add(const JsonField& field, int depth) {
  if (field.is_null()) return {};
  MORACLE_TRY(const std::string type, field["type"].text());
  if (type == "Sequence") {
    if (depth == kMaxNormalizers) return field["type"].unsupported("fewer nested sequences");
    MORACLE_TRY(const auto items, field["normalizers"].items());
    for (const JsonField& item : items) MORACLE_CHECK(add(item, depth + 1));
    return {};
  }
  if (type == "Prepend") {
    MORACLE_TRY(std::string text, field["prepend"].text());
    steps_.emplace_back(Prepend{std::move(text)});
    return {};
  }
  if (type == "Replace") return add_replace(field);
  if (type == "Strip") {
    MORACLE_TRY(const bool left, field["strip_left"].flag());
    MORACLE_TRY(const bool right, field["strip_right"].flag());
    steps_.emplace_back(Strip{left, right});
    return {};
  }
  const bool compat = type == "NFKC" || type == "NFKD";
  const bool compose = type == "NFC" || type == "NFKC";
  if (!compat && !compose && type != "NFD") {
    return field["type"].unsupported("NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or Sequence");
  }
  steps_.emplace_back(Form{compose, compat});
  return {};
}

Status Normalizer::add_replace(const JsonField& field) {
  MORACLE_TRY(Regex pattern, compile_pattern(field["pattern"]));
  MORACLE_TRY(std::string content, field["content"].text());
  steps_.emplace_back(Replace{std::move(pattern), std::move(content)});
  return {};
}

Result<std::string> Normalizer::apply(std::string_view text) const {
  std::string normalized(text);
  for (const auto& one : steps_) {
    const auto run = [&](const auto& s) { return step(s, std::move(normalized)); };
    MORACLE_TRY(normalized, std::visit(run, one));
  }
  return normalized;
}

Result<std::string> Normalizer::step(const Prepend& prepend, std::string text) {
  return text.empty() ? text : prepend.text + text;
}

Result<std::string> Normalizer::step(const Replace& replace, std::string text) {
  RegexScratch scratch(replace.pattern);
  std::vector<RegexSpan> spans;
  MORACLE_CHECK(scratch.cut(text, spans));
  const size_t longest = std::max(kSmallText, text.size() * kMostGrowth);
  std::string out;
  for (const auto& [range, matched] : spans) {
    if (out.size() > longest) {
      return Error{ErrorKind::kUnsupported, "", "text",
                   str("at most ", longest, " bytes after a Replace of the tokenizer"),
                   "it has more"};
    }
    if (matched)
      out += replace.content;
    else
      out.append(text, range.begin, range.end - range.begin);
  }
  return out;
}

Result<std::string> Normalizer::step(const Strip& strip, std::string text) {
  const size_t end = strip.right ? without_space_at_end(text, text.size()) : text.size();
  const size_t begin = strip.left ? behind_space_at_start(text, 0) : 0;
  return begin < end ? text.substr(begin, end - begin) : "";
}

Result<std::string> Normalizer::step(const Form& form, std::string text) {
  if (is_ascii(text)) return text;  // ASCII is the same in all forms
  const int compat = form.compat ? UTF8PROC_COMPAT : 0;
  const int decompose_options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | compat;
  auto codes = decompose(text, static_cast<utf8proc_option_t>(decompose_options));
  put_in_canonical_order(codes);
  if (form.compose) {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto length = utf8proc_normalize_utf32(
        codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
    if (length >= 0) codes.resize(static_cast<size_t>(length));
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t code : codes) append_utf8(static_cast<uint32_t>(code), out);
  return out;
}

}  // namespace moracle
