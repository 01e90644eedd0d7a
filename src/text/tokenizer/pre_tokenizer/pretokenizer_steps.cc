// The steps of a pre-tokenizer.
#include <algorithm>

#include "base/try.h"
#include "text/tokenizer/pre_tokenizer/byte_level.h"
#include "text/tokenizer/pre_tokenizer/pretokenizer.h"

namespace moracle {

Status Pretokenizer::Split::apply(Words& words, EncodeProgress& progress) const {
  RegexScratch scratch(regex);
  std::vector<TextRange> ranges;
  std::vector<RegexSpan> spans;
  ranges.reserve(words.ranges.size() + words.text.size() / 4);
  const Progress while_cutting = [&](int64_t, int64_t) { return progress.call(); };
  for (const TextRange& word : words.ranges) {
    if (!progress.step()) return EncodeProgress::stopped();
    const std::string_view text = words.text;
    MORACLE_CHECK(
        scratch.cut(text.substr(word.begin, word.end - word.begin), spans, while_cutting));
    keep(spans, word.begin, ranges);
  }
  words.at_start = words.at_start && !ranges.empty() && !words.ranges.empty() &&
                   ranges[0].begin == words.ranges[0].begin;
  words.ranges = std::move(ranges);
  return {};
}

/// Appends the words that `parts` (matches and gaps of one word at `offset`) make under `behavior`.
/// Modifies `parts`.
void Pretokenizer::Split::keep(std::vector<RegexSpan>& spans, size_t offset,
                               std::vector<TextRange>& out) const {
  if (invert) {
    for (RegexSpan& span : spans) span.matched = !span.matched;
  }
  // kMergedWithNext is kMergedWithPrevious in reverse order.
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  const size_t first = out.size();
  bool before = false;  // whether the previous part matched
  for (const auto& [range, matched] : spans) {
    bool merge = false;
    switch (behavior) {
      case Behavior::kIsolated:
      case Behavior::kRemoved:
        break;
      case Behavior::kContiguous:
        merge = matched == before;
        break;
      case Behavior::kMergedWithPrevious:
      case Behavior::kMergedWithNext:
        merge = matched && !before;
        break;
    }
    before = matched;
    const TextRange placed{range.begin + offset, range.end + offset};
    if (merge && out.size() > first) {
      if (backwards) out.back().begin = placed.begin;
      if (!backwards) out.back().end = placed.end;
    } else if (behavior != Behavior::kRemoved || !matched) {
      out.push_back(placed);
    }
  }
  const auto begin = out.begin() + static_cast<std::ptrdiff_t>(first);
  if (backwards) std::reverse(begin, out.end());
  out.erase(std::remove_if(begin, out.end(), [](const TextRange& r) { return r.empty(); }),
            out.end());
}

Status Pretokenizer::PrefixSpace::apply(Words& words, EncodeProgress&) const {
  Words spaced{.at_start = words.at_start};
  spaced.text.reserve(words.text.size() + words.ranges.size());
  for (const TextRange& word : words.ranges) {
    const size_t begin = spaced.text.size();
    if (words.text[word.begin] != ' ') spaced.text += ' ';
    spaced.text.append(words.text, word.begin, word.end - word.begin);
    spaced.ranges.push_back({begin, spaced.text.size()});
  }
  words = std::move(spaced);
  return {};
}

Status Pretokenizer::Marks::apply(Words& words, EncodeProgress&) const {
  using Prepend = MetaspaceOptions::Prepend;
  Words marked{.at_start = words.at_start};
  marked.text.reserve(words.text.size() + words.text.size() / 2);
  for (const TextRange& word : words.ranges) {
    const size_t begin = marked.text.size();
    const std::string text =
        replaced(std::string_view(words.text).substr(word.begin, word.end - word.begin), " ", mark);
    const bool is_first = words.at_start && &word == &words.ranges.front();
    const bool wants = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && is_first);
    if (wants && !text.starts_with(mark)) marked.text += mark;
    marked.text += text;
    marked.ranges.push_back({begin, marked.text.size()});
  }
  words = std::move(marked);
  return {};
}

Status Pretokenizer::ByteLevel::apply(Words& words, EncodeProgress&) const {
  std::string text;
  text.reserve(words.text.size() + words.text.size() / 2);
  for (TextRange& word : words.ranges) {
    const size_t begin = text.size();
    append_byte_level(std::string_view(words.text).substr(word.begin, word.end - word.begin), text);
    word = {begin, text.size()};
  }
  words.text = std::move(text);
  return {};
}

}  // namespace moracle
