#include "text/tokenizer/model/ranked_bpe.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"

namespace moracle {
namespace {

/// Heap order: the lowest rank first; among equal ranks, the leftmost.
constexpr auto kMergesLater = [](const RankedBpe::Candidate& a, const RankedBpe::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
};

}  // namespace

RankedBpe::RankedBpe(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  for (const auto& [token, id] : vocabulary_) longest_ = std::max(longest_, token.size());
}

Result<RankedBpe> RankedBpe::of_bytes(Vocabulary vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (!vocabulary.id({&text, 1})) {
      return Error{ErrorKind::kBadFile, "", "vocabulary", "a token for every byte",
                   str("byte ", byte, " has none")};
    }
  }
  return RankedBpe(std::move(vocabulary));
}

RankedBpe RankedBpe::of_characters(Vocabulary vocabulary, std::vector<int32_t> ranks,
                                   int32_t unknown) {
  RankedBpe bpe(std::move(vocabulary));
  bpe.ranks_ = std::move(ranks);
  bpe.by_character_ = true;
  bpe.bytes_ = ByteTokens(bpe.vocabulary_);
  bpe.unknown_ = unknown;
  return bpe;
}

void RankedBpe::read_symbols(std::string_view word, Scratch& scratch) const {
  scratch.symbols.assign(word.size(), {});
  int32_t previous = -1;
  for (size_t at = 0; at < word.size();) {
    const size_t length = by_character_ ? first_char(word.substr(at)).length : 1;
    const auto id = vocabulary_.id(word.substr(at, length));
    scratch.symbols[at] = {id.value_or(-1), static_cast<int32_t>(at + length), previous};
    previous = static_cast<int32_t>(at);
    at += length;
  }
}

/// Adds a merge candidate for the symbols at `at` and after it, if their bytes form a token.
bool RankedBpe::push(std::string_view word, Scratch& scratch, int32_t at) const {
  const int32_t middle = scratch.symbols[static_cast<size_t>(at)].end;
  if (static_cast<size_t>(middle) == word.size()) return false;
  const int32_t end = scratch.symbols[static_cast<size_t>(middle)].end;
  const auto size = static_cast<size_t>(end - at);
  if (size > longest_) return false;
  const auto id = vocabulary_.id(word.substr(static_cast<size_t>(at), size));
  if (!id) return false;
  const int32_t rank = ranks_.empty() ? *id : ranks_[static_cast<size_t>(*id)];
  scratch.heap.push_back({rank, *id, at, end});
  return true;
}

Status RankedBpe::merge_all(std::string_view word, EncodeProgress& progress,
                            Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto size = static_cast<int32_t>(word.size());
  heap.clear();
  for (int32_t at = 0; at < size; at = symbols[static_cast<size_t>(at)].end) {
    if (!progress.step()) return EncodeProgress::stopped();
    push(word, scratch, at);
  }
  std::make_heap(heap.begin(), heap.end(), kMergesLater);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kMergesLater);
    const Candidate best = heap.back();
    heap.pop_back();
    if (!progress.step()) return EncodeProgress::stopped();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (left.end == 0 || left.end >= best.end) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.end)];
    if (right.end != best.end) continue;
    left = {best.merged, right.end, left.previous};
    right.end = 0;
    if (left.end < size) symbols[static_cast<size_t>(left.end)].previous = best.at;
    for (const int32_t at : {best.at, left.previous}) {
      if (at >= 0 && push(word, scratch, at))
        std::push_heap(heap.begin(), heap.end(), kMergesLater);
    }
  }
  return {};
}

Status RankedBpe::encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                         std::vector<int32_t>& ids) const {
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Error{ErrorKind::kInvalidArgument, "", "text", "words of less than 2 GiB",
                 str("it has ", word.size(), " bytes")};
  }
  if (!by_character_) {
    if (const auto whole = vocabulary_.id(word)) {
      ids.push_back(*whole);
      return {};
    }
  }
  read_symbols(word, scratch);
  MORACLE_CHECK(merge_all(word, progress, scratch));
  for (size_t at = 0; at < word.size();) {
    const Scratch::Symbol& symbol = scratch.symbols[at];
    const auto end = static_cast<size_t>(symbol.end);
    if (symbol.id >= 0)
      ids.push_back(symbol.id);
    else if (!bytes_.append(word.substr(at, end - at), ids))
      ids.push_back(unknown_);
    at = end;
  }
  return {};
}

}  // namespace moracle
