#include "text/tokenizer/model/unigram.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"

namespace moracle {
namespace {

/// An unknown character scores this much less than the worst token.
constexpr double kUnknownPenalty = 10;

/// Parses `score` as Hugging Face tokenizers does: all digits as one integer, rounded, then scaled
/// by a power of ten. The last bit may differ from the exact value, and decides between
/// segmentations with equal sums.
double as_library_reads(double score) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), std::abs(score),
                                          std::chars_format::scientific);
  if (error != std::errc() || !std::isfinite(score)) return score;
  const std::string_view shown(text.data(), static_cast<size_t>(end - text.data()));
  const size_t e = shown.find('e');
  uint64_t digits = 0;
  int exponent = 0;
  for (const char c : shown.substr(0, e)) {
    if (c != '.') digits = digits * 10 + static_cast<uint64_t>(c - '0');
  }
  const char* const sign = shown.data() + e + 1;  // from_chars rejects '+'
  std::from_chars(*sign == '+' ? sign + 1 : sign, end, exponent);
  exponent -= static_cast<int>(e) - (e > 1 ? 2 : 1);
  const double power = std::pow(10.0, std::abs(exponent));
  const auto whole = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? whole / power : whole * power, score);
}

Error no_unknown_token() {
  return {ErrorKind::kBadFile, "", "model.unk_id", "the id of the unknown token",
          "it is null, and the text has a character without a token"};
}

}  // namespace

Result<Unigram> Unigram::parse(const JsonField& field) {
  Unigram unigram;
  MORACLE_TRY(unigram.byte_fallback_, field["byte_fallback"].flag_or(false));
  const JsonField vocab = field["vocab"];
  MORACLE_TRY(const auto items, vocab.items());
  double least = std::numeric_limits<double>::infinity();
  for (const JsonField& item : items) {
    if (!item.value().is_array() || item.value().size() != 2) return item.bad("a text and a score");
    MORACLE_TRY(const auto pair, item.items());
    MORACLE_TRY(const std::string text, pair[0].text());
    MORACLE_TRY(const double score, pair[1].number());
    const auto id = static_cast<int32_t>(unigram.scores_.size());
    if (id == kLargestTokenId)
      return vocab.unsupported(str("at most ", kLargestTokenId, " tokens"));
    unigram.vocabulary_.add(text, id);
    unigram.scores_.push_back(as_library_reads(score));
    least = std::min(least, unigram.scores_.back());
  }
  for (const auto& [text, id] : unigram.vocabulary_)
    unigram.trie_.add(text, static_cast<size_t>(id));
  unigram.unknown_score_ = least - kUnknownPenalty;
  unigram.bytes_ = ByteTokens(unigram.vocabulary_);
  if (field["unk_id"].is_null()) return unigram;
  MORACLE_TRY(const int64_t unknown,
              field["unk_id"].integer(0, static_cast<int64_t>(items.size()) - 1));
  unigram.unknown_ = static_cast<int32_t>(unknown);
  return unigram;
}

/// Viterbi forward pass: fills scratch.endings with the best segmentation that ends at each
/// character.
Status Unigram::find_best(std::string_view word, EncodeProgress& progress, Scratch& scratch) const {
  scratch.endings.assign(word.size() + 1, {});
  for (size_t begin = 0; begin < word.size();) {
    if (!progress.step()) return EncodeProgress::stopped();
    const double before = scratch.endings[begin].score;
    const size_t length = first_char(word.substr(begin)).length;
    const auto offer = [&](size_t end, double score, int32_t id) {
      Scratch::Ending& ending = scratch.endings[end];
      if (!ending.known || before + score > ending.score)
        ending = {before + score, begin, id, true};
    };
    bool has_character = false;
    trie_.find_all(word, begin, scratch.matches);
    for (const TokenTrie::Match& match : scratch.matches) {
      offer(match.end, scores_[match.number], static_cast<int32_t>(match.number));
      has_character |= match.end == begin + length;
    }
    if (!has_character) {
      if (!unknown_) return no_unknown_token();
      offer(begin + length, unknown_score_, *unknown_);
    }
    begin += length;
  }
  return {};
}

Status Unigram::encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                       std::vector<int32_t>& ids) const {
  MORACLE_CHECK(find_best(word, progress, scratch));
  // Viterbi backward pass. Adjacent unknown tokens become one.
  scratch.ranges.clear();
  bool open = false;
  for (size_t end = word.size(); end > 0;) {
    const Scratch::Ending& last = scratch.endings[end];
    const bool is_unknown = unknown_ && last.id == *unknown_;
    if (is_unknown && open) {
      scratch.ranges.back().begin = last.begin;
    } else {
      scratch.ranges.push_back({last.begin, end});
    }
    open = is_unknown;
    end = last.begin;
  }
  for (auto range = scratch.ranges.rbegin(); range != scratch.ranges.rend(); ++range) {
    const std::string_view text = word.substr(range->begin, range->end - range->begin);
    if (const auto id = vocabulary_.id(text)) {
      ids.push_back(*id);
    } else if (!byte_fallback_ || !bytes_.append(text, ids)) {
      if (!unknown_) return no_unknown_token();
      ids.push_back(*unknown_);
    }
  }
  return {};
}

}  // namespace moracle
