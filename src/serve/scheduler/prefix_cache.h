// Prefix cache: full pages of keys and values, shared by sequences with the same prefix. With
// recurrent layers, also states at the ends of pages. Pages and states that leave the device may
// stay in host memory.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moracle::serve {

using SequenceId = uint64_t;

/// Id of a cached page. The scheduler handles ids only; the engine maps them to memory.
using PageId = int64_t;

/// Sequences share pages only within one scope.
struct PrefixScope {
  int32_t adapter = -1;
  std::string_view salt;  ///< "cache_salt" of the request
};

/// What happens to the memory of a page or of the state at its end.
struct CacheMove {
  enum class Kind : uint8_t {
    kDrop,          ///< forget the page and its state, wherever they are
    kPageToRam,     ///< from the device to host memory
    kPageToDevice,  ///< back
    kKeepState,     ///< keep the state of `sequence`, on the device
    kStateToRam,    ///< from the device to host memory
    kDropState,     ///< forget the state, wherever it is
  };
  Kind kind = Kind::kDrop;
  PageId page = 0;
  SequenceId sequence = 0;
  bool operator==(const CacheMove&) const = default;
};

struct PrefixLimits {
  int64_t page = 1;           ///< tokens per page
  bool needs_states = false;  ///< recurrent layers: a prefix is of use only where a state is kept
  int64_t num_states = 0;     ///< states on the device
  int64_t ram_slots = 0;      ///< host memory, in pages
  int64_t state_slots = 1;    ///< slots of host memory for a state
};

/// A radix tree of full pages, keyed by a page's tokens and its parent page. A user of a page also
/// uses all its ancestors. Unused pages stay until evicted: least recently used first, leaves only.
/// A page in host memory has only such pages below it. The `moves` that calls append apply in
/// order.
class PrefixCache {
 public:
  explicit PrefixCache(const PrefixLimits& limits) : limits_(limits) {}

  struct Taken {
    std::vector<PageId> pages;
    int64_t num_matching = 0;  ///< pages with these tokens; `pages` end where a state is kept
  };
  /// Acquires the longest usable prefix of `tokens`, at most `most` pages. Call release() for them
  /// later. Some may lie in host memory: bring them before use.
  Taken take(PrefixScope scope, std::span<const int32_t> tokens, int64_t most);
  /// Number of acquired pages that lie in host memory.
  int64_t num_in_ram(std::span<const PageId> pages) const;
  /// Brings acquired pages to the device, which must have free pages for them.
  void bring(std::span<const PageId> pages, std::vector<CacheMove>& moves);

  struct Added {
    PageId id;
    bool is_new;  ///< false: the page was on the device before
  };
  /// Adds a page with `tokens` below the last page of `before`, which the caller must hold.
  /// Acquires it for the caller.
  Added add(PrefixScope scope, std::span<const PageId> before, std::span<const int32_t> tokens);
  /// Keeps the state of `sequence` at the end of an acquired page. The least recently used state
  /// makes room. False: it is kept already.
  bool add_state(PageId page, SequenceId sequence, bool lasts, std::vector<CacheMove>& moves);
  /// Drops a state that was not added to last and with which no sequence has begun. Ignores unknown
  /// pages.
  void drop_state_if_unused(PageId page, std::vector<CacheMove>& moves);

  /// Releases the pages of one sequence, given in order.
  void release(std::span<const PageId> pages);
  /// Frees the device's least recently used page, to host memory if there are slots. False: all
  /// pages are in use.
  bool evict(std::vector<CacheMove>& moves);
  /// Drops all states and all unused pages.
  void drop_all(std::vector<CacheMove>& moves);

  int64_t num_pages() const { return num_on_device_; }  ///< on the device
  /// Number of pages on the device that can be evicted.
  int64_t num_unused() const { return num_unused_; }
  int64_t num_states() const { return static_cast<int64_t>(states_.size()); }  ///< on the device
  int64_t ram_slots_in_use() const { return ram_slots_; }

 private:
  // Parent page; salt, empty below the first page; tokens.
  using Key = std::tuple<PageId, std::string, std::vector<int32_t>>;
  using Queue = std::set<std::pair<uint64_t, PageId>>;  // by time of last use
  enum class Tier : uint8_t { kNone, kDevice, kRam };
  struct Node {
    int64_t users = 0, children = 0, device_children = 0;
    uint64_t last_use = 0, state_use = 0;
    bool is_on_device = true;
    Tier state = Tier::kNone;
    bool state_lasts = false;  // until others need its memory
    std::map<Key, PageId>::iterator at;
    PageId parent() const { return std::get<PageId>(at->first); }
  };
  static PageId root(int32_t adapter) { return -2 - int64_t{adapter}; }
  Node* find(PageId id);
  void use(PageId id, Node& node);
  void offer(PageId id, const Node& node);
  void withdraw(PageId id, const Node& node);
  void to_device(Node& node);
  bool has_state(const Node& node) const {
    return !limits_.needs_states || node.state != Tier::kNone;
  }
  void forget_state(PageId id, Node& node);
  void drop(PageId id, std::vector<CacheMove>& moves);
  bool make_ram_room(int64_t slots, std::vector<CacheMove>& moves);
  void evict_state(std::vector<CacheMove>& moves);

  const PrefixLimits limits_;
  std::map<Key, PageId> pages_;
  std::unordered_map<PageId, Node> nodes_;
  Queue evictable_;      // unused pages on the device without such pages below them
  Queue ram_evictable_;  // unused pages in host memory without pages below them
  Queue states_;         // on the device
  Queue ram_states_;     // in host memory, of unused pages
  int64_t num_on_device_ = 0, num_unused_ = 0, ram_slots_ = 0;
  uint64_t clock_ = 0;
  PageId next_ = 1;
};

}  // namespace moracle::serve
