#include "text/tokenizer/pre_tokenizer/pretokenizer.h"

#include <array>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "text/tokenizer/pattern.h"

namespace moracle {
namespace {

constexpr int kMaxPretokenizers = 8;

/// GPT-2's regular expression. ByteLevel uses it unless "use_regex" is false.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Character classes of the Punctuation and Digits steps: see unicode_tables.h.
constexpr const char *kPunctuation = R"(\p{moracle punctuation step})",
                     *kDigits = R"(\p{moracle digits step})";

}  // namespace

Result<Pretokenizer> Pretokenizer::parse(const JsonField& field) {
  Pretokenizer pretokenizer;
  MORACLE_CHECK(pretokenizer.add(field, 0));
  return pretokenizer;
}

Status Pretokenizer::apply(Words& words, EncodeProgress& progress) const {
  for (const auto& step : steps_) {
    if (!progress.step()) return EncodeProgress::stopped();
    MORACLE_CHECK(std::visit([&](const auto& one) { return one.apply(words, progress); }, step));
  }
  return {};
}

Status Pretokenizer::add(const JsonField& field, int depth) {
  if (field.is_null()) return {};
  MORACLE_TRY(const std::string type, field["type"].text());
  if (type == "ByteLevel") return add_byte_level(field);
  if (type == "Split") return add_split(field);
  if (type == "Digits") return add_digits(field);
  if (type == "Punctuation") return add_punctuation(field);
  if (type == "Metaspace") return add_metaspace(field);
  if (type != "Sequence") {
    return field["type"].unsupported(
        "ByteLevel, Split, Digits, Punctuation, Metaspace or Sequence");
  }
  if (depth == kMaxPretokenizers) return field["type"].unsupported("fewer nested sequences");
  MORACLE_TRY(const auto items, field["pretokenizers"].items());
  for (const JsonField& item : items) MORACLE_CHECK(add(item, depth + 1));
  return {};
}

Status Pretokenizer::add_byte_level(const JsonField& field) {
  MORACLE_TRY(const bool add_prefix_space, field["add_prefix_space"].flag());
  MORACLE_TRY(const bool use_regex, field["use_regex"].flag_or(true));
  if (add_prefix_space) steps_.emplace_back(PrefixSpace{});
  if (use_regex) {
    MORACLE_TRY(Regex regex, placed(Regex::compile(kGpt2Words, RegexSyntax::kOniguruma), field));
    steps_.emplace_back(Split{std::move(regex), Behavior::kIsolated, false});
  }
  steps_.emplace_back(ByteLevel{});
  return {};
}

Status Pretokenizer::add_split(const JsonField& field) {
  MORACLE_TRY(const bool invert, field["invert"].flag());
  MORACLE_TRY(const Behavior behavior, read_behavior(field["behavior"]));
  MORACLE_TRY(Regex regex, compile_pattern(field["pattern"]));
  steps_.emplace_back(Split{std::move(regex), behavior, invert});
  return {};
}

Result<Pretokenizer::Behavior> Pretokenizer::read_behavior(const JsonField& field) {
  static constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [name, value] : kBehaviors) {
    if (field.value() == name) return value;
  }
  MORACLE_CHECK(field.text());
  return field.unsupported("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

Status Pretokenizer::add_punctuation(const JsonField& field) {
  Behavior behavior = Behavior::kIsolated;
  if (!field["behavior"].is_null()) {
    MORACLE_TRY(behavior, read_behavior(field["behavior"]));
  }
  MORACLE_TRY(Regex regex, placed(Regex::compile(kPunctuation, RegexSyntax::kOniguruma), field));
  steps_.emplace_back(Split{std::move(regex), behavior, false});
  return {};
}

Status Pretokenizer::add_metaspace(const JsonField& field) {
  MORACLE_TRY(MetaspaceOptions options, MetaspaceOptions::parse(field));
  const bool split = options.split;
  MORACLE_TRY(Regex mark, placed(Regex::compile(options.mark, RegexSyntax::kLiteral), field));
  steps_.emplace_back(Marks{std::move(options.mark), options.prepend});
  if (split) steps_.emplace_back(Split{std::move(mark), Behavior::kMergedWithNext, false});
  return {};
}

Status Pretokenizer::add_digits(const JsonField& field) {
  MORACLE_TRY(const bool individual, field["individual_digits"].flag());
  MORACLE_TRY(Regex regex, placed(Regex::compile(kDigits, RegexSyntax::kOniguruma), field));
  const Behavior behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  steps_.emplace_back(Split{std::move(regex), behavior, false});
  return {};
}

}  // namespace moracle
