#include "models/speculation/ngram_drafter.h"

namespace moracle {
namespace ngram_drafter {
namespace {

// FNV-1a over whole ids.
uint64_t hash_of(std::span<const int32_t> run) {
  uint64_t hash = 14695981039346656037u;
  for (const int32_t id : run) hash = (hash ^ static_cast<uint32_t>(id)) * 1099511628211u;
  return hash;
}

}  // namespace
}  // namespace ngram_drafter

// A run enters the table with the token that follows it. The text's last run is then not in it.
void NgramDrafter::follow(std::span<const int32_t> tokens) {
  const size_t before = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin() + static_cast<ptrdiff_t>(before), tokens.end());
  for (size_t at = before; at < tokens_.size(); ++at) {
    for (size_t size = kShortest; size <= kLongest && size <= at; ++size)
      next_[size - kShortest][ngram_drafter::hash_of(std::span(tokens_).subspan(at - size, size))] =
          at;
  }
}

void NgramDrafter::draft(int64_t most, std::vector<int32_t>& to) const {
  const size_t text = tokens_.size();
  for (size_t size = kLongest; size >= kShortest; --size) {
    if (size > text) continue;
    const Ends& ends = next_[size - kShortest];
    const auto found = ends.find(ngram_drafter::hash_of(std::span(tokens_).last(size)));
    if (found == ends.end()) continue;
    const size_t first = to.size();
    for (int64_t i = 0; i < most; ++i) {
      const size_t at = found->second + static_cast<size_t>(i);
      to.push_back(at < text ? tokens_[at] : to[first + at - text]);
    }
    return;
  }
}

}  // namespace moracle
