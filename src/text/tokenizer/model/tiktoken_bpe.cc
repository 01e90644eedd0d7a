#include "text/tokenizer/model/tiktoken_bpe.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

/// Heap order: the lowest id first; among equal ids, the leftmost.
constexpr auto kMergesLater = [](const TiktokenBpe::Candidate& a, const TiktokenBpe::Candidate& b) {
  return a.merged != b.merged ? a.merged > b.merged : a.at > b.at;
};

}  // namespace

Result<TiktokenBpe> TiktokenBpe::make(Vocabulary vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (!vocabulary.id({&text, 1})) {
      return Error{ErrorKind::kBadFile, "", "vocabulary", "a token for every byte",
                   str("byte ", byte, " has none")};
    }
  }
  TiktokenBpe bpe;
  for (const auto& [token, id] : vocabulary) bpe.longest_ = std::max(bpe.longest_, token.size());
  bpe.vocabulary_ = std::move(vocabulary);
  return bpe;
}

/// Adds a merge candidate for the symbols at `at` and after it, if their bytes form a token.
bool TiktokenBpe::push(std::string_view word, Scratch& scratch, int32_t at) const {
  const int32_t middle = scratch.symbols[static_cast<size_t>(at)].end;
  if (static_cast<size_t>(middle) == word.size()) return false;
  const int32_t end = scratch.symbols[static_cast<size_t>(middle)].end;
  const auto size = static_cast<size_t>(end - at);
  if (size > longest_) return false;
  const auto id = vocabulary_.id(word.substr(static_cast<size_t>(at), size));
  if (!id) return false;
  scratch.heap.push_back({*id, at, end});
  return true;
}

Status TiktokenBpe::encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                           std::vector<int32_t>& ids) const {
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Error{ErrorKind::kInvalidArgument, "", "text", "words of less than 2 GiB",
                 str("it has ", word.size(), " bytes")};
  }
  if (const auto whole = vocabulary_.id(word)) {
    ids.push_back(*whole);
    return {};
  }
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto size = static_cast<int32_t>(word.size());
  for (int32_t at = 0; at < size; ++at) {
    const auto id = vocabulary_.id(word.substr(static_cast<size_t>(at), 1));
    symbols.push_back({id.value_or(-1), at + 1, at - 1});
  }
  for (int32_t at = 0; at < size; ++at) {
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
    if (left.id < 0 || left.end >= best.end) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.end)];
    if (right.end != best.end) continue;
    left = {best.merged, right.end, left.previous};
    right.id = -1;
    if (left.end < size) symbols[static_cast<size_t>(left.end)].previous = best.at;
    for (const int32_t at : {best.at, left.previous}) {
      if (at >= 0 && push(word, scratch, at))
        std::push_heap(heap.begin(), heap.end(), kMergesLater);
    }
  }
  for (int32_t at = 0; at < size; at = symbols[static_cast<size_t>(at)].end)
    ids.push_back(symbols[static_cast<size_t>(at)].id);
  return {};
}

}  // namespace moracle
