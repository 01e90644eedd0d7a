#include "serve/scheduler/prefix_cache.h"

#include <algorithm>

namespace moracle::serve {

void PrefixCache::use(PageId id, Node& node) {
  if (node.users++ > 0) return;
  --num_unused_;
  evictable_.erase({node.last_use, id});
}

// Makes `node` evictable if it has neither users nor children.
void PrefixCache::leaf_changed(PageId id, const Node& node) {
  if (node.users == 0 && node.children == 0) evictable_.insert({node.last_use, id});
}

std::vector<PageId> PrefixCache::take(PrefixScope scope, std::span<const int32_t> tokens,
                                      int64_t most) {
  const int64_t full = std::min(most, static_cast<int64_t>(tokens.size()) / page_);
  std::vector<PageId> taken;
  PageId before = root(scope.adapter);
  for (int64_t i = 0; i < full; ++i) {
    const auto part = tokens.subspan(i * page_, page_);
    const auto found =
        pages_.find({before, std::string(i == 0 ? scope.salt : ""), {part.begin(), part.end()}});
    if (found == pages_.end()) break;
    before = found->second;
    use(before, nodes_.at(before));
    taken.push_back(before);
  }
  return taken;
}

PrefixCache::Added PrefixCache::add(PrefixScope scope, std::span<const PageId> before,
                                    std::span<const int32_t> tokens) {
  const bool is_first = before.empty();
  const PageId parent = is_first ? root(scope.adapter) : before.back();
  const auto [at, is_new] = pages_.try_emplace(
      {parent, std::string(is_first ? scope.salt : ""), {tokens.begin(), tokens.end()}}, next_);
  const PageId id = at->second;
  if (is_new) {
    ++next_;
    ++num_unused_;  // until use() below
    nodes_[id].at = at;
    if (!is_first) ++nodes_.at(parent).children;
  }
  use(id, nodes_.at(id));
  return {id, is_new};
}

void PrefixCache::release(std::span<const PageId> pages) {
  ++clock_;
  // Release the last page first, so that an unused page has no used descendant.
  for (auto at = pages.rbegin(); at != pages.rend(); ++at) {
    Node& node = nodes_.at(*at);
    if (--node.users > 0) continue;
    ++num_unused_;
    node.last_use = clock_;
    leaf_changed(*at, node);
  }
}

std::optional<PageId> PrefixCache::evict() {
  if (evictable_.empty()) return {};
  const PageId id = evictable_.begin()->second;
  evictable_.erase(evictable_.begin());
  const auto at = nodes_.at(id).at;
  const PageId parent = std::get<PageId>(at->first);
  pages_.erase(at);
  nodes_.erase(id);
  --num_unused_;
  if (const auto before = nodes_.find(parent); before != nodes_.end()) {
    --before->second.children;
    leaf_changed(parent, before->second);
  }
  return id;
}

}  // namespace moracle::serve
