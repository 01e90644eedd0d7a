#include "text/tokenizer/token_trie.h"

namespace moracle {

void TokenTrie::add(std::string_view text, size_t number) {
  if (text.empty()) return;
  begins_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [place, is_new] = edges_.try_emplace(edge(node, byte), nodes_);
    if (is_new) ++nodes_;
    node = place->second;
  }
  numbers_.try_emplace(node, number);
}

std::optional<TokenTrie::Match> TokenTrie::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    walk(text, begin, [&](const Match& match) { longest = match; });
    if (longest) return longest;
  }
  return std::nullopt;
}

void TokenTrie::find_all(std::string_view text, size_t begin, std::vector<Match>& matches) const {
  matches.clear();
  walk(text, begin, [&](const Match& match) { matches.push_back(match); });
}

template <class OnMatch>
void TokenTrie::walk(std::string_view text, size_t begin, OnMatch on_match) const {
  if (!begins_[static_cast<uint8_t>(text[begin])]) return;
  uint32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const auto next = edges_.find(edge(node, text[at]));
    if (next == edges_.end()) return;
    node = next->second;
    if (const auto number = numbers_.find(node); number != numbers_.end())
      on_match({begin, at + 1, number->second});
  }
}

}  // namespace moracle
