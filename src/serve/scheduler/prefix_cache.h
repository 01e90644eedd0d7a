// Pages of keys and values that several sequences may use, found by the tokens that they hold.
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

/// A page in the cache. The scheduler knows pages only by number; the engine maps them to memory.
using PageId = int64_t;

/// Sequences share pages only within the same scope.
struct PrefixScope {
  int32_t adapter = -1;
  std::string_view salt;  ///< of the request
};

/// A tree of full pages. A page is found by its tokens and by the page before it, so equal tokens
/// behind different beginnings are different pages. A user of a page also uses all pages before
/// it. Pages without users stay until they are evicted: the least recently used first, and no page
/// before those that follow it.
class PrefixCache {
 public:
  /// `page`: tokens per page.
  explicit PrefixCache(int64_t page) : page_(page) {}

  /// The pages that hold the beginning of `tokens`, at most `most` of them. The caller uses each
  /// until release().
  std::vector<PageId> take(PrefixScope scope, std::span<const int32_t> tokens, int64_t most);

  struct Added {
    PageId id;
    bool is_new;  ///< false: another sequence had computed the same page
  };
  /// Adds the page with `tokens` after the pages `before`, which the caller uses. The caller uses
  /// the added page, too.
  Added add(PrefixScope scope, std::span<const PageId> before, std::span<const int32_t> tokens);

  /// Ends the use of the pages of one sequence, in the order in which it got them.
  void release(std::span<const PageId> pages);
  /// Drops the page without users that was used longest ago. Nothing: every page has a user.
  std::optional<PageId> evict();

  int64_t num_pages() const { return static_cast<int64_t>(nodes_.size()); }
  /// Number of pages that evict() can drop.
  int64_t num_unused() const { return num_unused_; }

 private:
  // The page before; the salt, which is empty behind the first page; the tokens.
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
  std::set<std::pair<uint64_t, PageId>> evictable_;  // unused leaves by last use
  int64_t num_unused_ = 0;
  uint64_t clock_ = 0;
  PageId next_ = 1;
};

}  // namespace moracle::serve
