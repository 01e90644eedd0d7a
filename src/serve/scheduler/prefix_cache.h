// Prefix cache: full pages of keys and values, shared by sequences with the same prefix.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moracle::serve {

/// Id of a cached page. The scheduler handles ids only; the engine maps them to memory.
using PageId = int64_t;

/// Sequences share pages only within one scope.
struct PrefixScope {
  int32_t adapter = -1;
  std::string_view salt;  ///< "cache_salt" of the request
};

/// A radix tree of full pages, keyed by a page's tokens and its parent page. A user of a page also
/// uses all its ancestors. Unused pages stay until evicted: least recently used first, leaves only.
class PrefixCache {
 public:
  /// `page`: tokens per page.
  explicit PrefixCache(int64_t page) : page_(page) {}

  /// Acquires the longest cached prefix of `tokens`, at most `most` pages. Call release() for them
  /// later.
  std::vector<PageId> take(PrefixScope scope, std::span<const int32_t> tokens, int64_t most);

  struct Added {
    PageId id;
    bool is_new;  ///< false: the page was cached before
  };
  /// Adds a page with `tokens` below the last page of `before`, which the caller must hold.
  /// Acquires it for the caller.
  Added add(PrefixScope scope, std::span<const PageId> before, std::span<const int32_t> tokens);

  /// Releases the pages of one sequence, given in order.
  void release(std::span<const PageId> pages);
  /// Evicts the least recently used page. Nothing: all pages are in use.
  std::optional<PageId> evict();

  int64_t num_pages() const { return static_cast<int64_t>(nodes_.size()); }
  /// Number of pages that can be evicted.
  int64_t num_unused() const { return num_unused_; }

 private:
  // Parent page; salt, empty below the first page; tokens.
  using Key = std::tuple<PageId, std::string, std::vector<int32_t>>;
  struct Node {
    int64_t users = 0, children = 0;
    uint64_t last_use = 0;
    std::map<Key, PageId>::iterator at;
  };
  static PageId root(int32_t adapter) { return -2 - int64_t{adapter}; }
  void use(PageId id, Node& node);
  void leaf_changed(PageId id, const Node& node);

  const int64_t page_;
  std::map<Key, PageId> pages_;
  std::unordered_map<PageId, Node> nodes_;
  std::set<std::pair<uint64_t, PageId>> evictable_;  // unused leaves, by time of last use
  int64_t num_unused_ = 0;
  uint64_t clock_ = 0;
  PageId next_ = 1;
};

}  // namespace moracle::serve
