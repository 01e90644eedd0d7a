// Multi-pattern search: the leftmost match, or all matches at a position.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moracle {

/// A trie of non-empty strings, each with a number.
class TokenTrie {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    size_t number = 0;
  };

  /// The first of equal strings wins.
  void add(std::string_view text, size_t number);
  /// Lists the matches that begin at `begin`, shortest first.
  void find_all(std::string_view text, size_t begin, std::vector<Match>& matches) const;
  /// Returns the leftmost match from `from` on, the longest of several.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  /// Calls on_match for each match that begins at `begin`, shortest first.
  template <class OnMatch>
  void walk(std::string_view text, size_t begin, OnMatch on_match) const;
  uint64_t edge(uint32_t node, char byte) const {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }
  std::array<bool, 256> begins_{};  ///< first bytes of all strings
  uint32_t nodes_ = 1;
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::unordered_map<uint32_t, size_t> numbers_;  ///< by final node
};

}  // namespace moracle
