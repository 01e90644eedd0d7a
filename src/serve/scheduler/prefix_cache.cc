#include "serve/scheduler/prefix_cache.h"

#include <algorithm>

namespace moracle::serve {

PrefixCache::Node* PrefixCache::find(PageId id) {
  const auto at = nodes_.find(id);
  return at == nodes_.end() ? nullptr : &at->second;
}

// Adds `node` to the queues that it belongs to.
void PrefixCache::offer(PageId id, const Node& node) {
  if (node.users > 0) return;
  if (node.is_on_device && node.device_children == 0) evictable_.insert({node.last_use, id});
  if (!node.is_on_device && node.children == 0) ram_evictable_.insert({node.last_use, id});
  if (node.state == Tier::kRam) ram_states_.insert({node.state_use, id});
}

void PrefixCache::withdraw(PageId id, const Node& node) {
  evictable_.erase({node.last_use, id});
  ram_evictable_.erase({node.last_use, id});
  ram_states_.erase({node.state_use, id});
}

void PrefixCache::use(PageId id, Node& node) {
  if (node.users == 0) {
    withdraw(id, node);
    if (node.is_on_device) --num_unused_;
  }
  ++node.users;
}

PrefixCache::Taken PrefixCache::take(PrefixScope scope, std::span<const int32_t> tokens,
                                     int64_t most) {
  const int64_t full = std::min(most, static_cast<int64_t>(tokens.size()) / limits_.page);
  Taken taken;
  size_t usable = 0;
  PageId before = root(scope.adapter);
  for (int64_t i = 0; i < full; ++i) {
    const auto part = tokens.subspan(i * limits_.page, limits_.page);
    const auto found =
        pages_.find({before, std::string(i == 0 ? scope.salt : ""), {part.begin(), part.end()}});
    if (found == pages_.end()) break;
    before = found->second;
    taken.pages.push_back(before);
    if (has_state(nodes_.at(before))) usable = taken.pages.size();
  }
  taken.num_matching = static_cast<int64_t>(taken.pages.size());
  taken.pages.resize(usable);
  for (const PageId id : taken.pages) use(id, nodes_.at(id));
  if (limits_.needs_states && usable > 0) {
    Node& last = nodes_.at(taken.pages.back());
    last.state_lasts = true;
    const bool is_queued = states_.erase({last.state_use, taken.pages.back()}) > 0;
    last.state_use = ++clock_;
    if (is_queued) states_.insert({last.state_use, taken.pages.back()});
  }
  return taken;
}

int64_t PrefixCache::num_in_ram(std::span<const PageId> pages) const {
  return std::count_if(pages.begin(), pages.end(),
                       [&](PageId id) { return !nodes_.at(id).is_on_device; });
}

void PrefixCache::to_device(Node& node) {
  node.is_on_device = true;
  --ram_slots_;
  ++num_on_device_;
  if (Node* const parent = find(node.parent())) {
    withdraw(node.parent(), *parent);
    ++parent->device_children;
    offer(node.parent(), *parent);
  }
}

void PrefixCache::bring(std::span<const PageId> pages, std::vector<CacheMove>& moves) {
  for (const PageId id : pages) {
    Node& node = nodes_.at(id);
    if (node.is_on_device) continue;
    to_device(node);
    moves.push_back({CacheMove::Kind::kPageToDevice, id});
  }
}

PrefixCache::Added PrefixCache::add(PrefixScope scope, std::span<const PageId> before,
                                    std::span<const int32_t> tokens) {
  const bool is_first = before.empty();
  const PageId parent = is_first ? root(scope.adapter) : before.back();
  const auto [at, is_new] = pages_.try_emplace(
      {parent, std::string(is_first ? scope.salt : ""), {tokens.begin(), tokens.end()}}, next_);
  const PageId id = at->second;
  Node& node = nodes_[id];
  if (is_new) {
    ++next_;
    node.at = at;
    node.users = 1;
    ++num_on_device_;
    if (!is_first) {
      ++nodes_.at(parent).children;
      ++nodes_.at(parent).device_children;
    }
    return {id, true};
  }
  const bool was_on_device = node.is_on_device;
  use(id, node);
  if (!was_on_device) to_device(node);  // the sequence's page replaces the copy
  return {id, !was_on_device};
}

void PrefixCache::release(std::span<const PageId> pages) {
  ++clock_;
  // Release the last page first, so that an unused page has no used descendant.
  for (auto at = pages.rbegin(); at != pages.rend(); ++at) {
    Node& node = nodes_.at(*at);
    if (--node.users > 0) continue;
    if (node.is_on_device) ++num_unused_;
    node.last_use = clock_;
    offer(*at, node);
  }
}

void PrefixCache::forget_state(PageId id, Node& node) {
  states_.erase({node.state_use, id});
  ram_states_.erase({node.state_use, id});
  if (node.state == Tier::kRam) ram_slots_ -= limits_.state_slots;
  node.state = Tier::kNone;
  node.state_lasts = false;
}

// Drops an unused page and the pages below it.
void PrefixCache::drop(PageId id, std::vector<CacheMove>& moves) {
  for (;;) {
    const auto child = pages_.lower_bound({id, "", {}});
    if (child == pages_.end() || std::get<PageId>(child->first) != id) break;
    drop(child->second, moves);
  }
  Node& node = nodes_.at(id);
  const PageId parent = node.parent();
  withdraw(id, node);
  forget_state(id, node);
  if (node.is_on_device) {
    --num_on_device_;
    --num_unused_;
  } else {
    --ram_slots_;
  }
  if (Node* const above = find(parent)) {
    withdraw(parent, *above);
    --above->children;
    above->device_children -= node.is_on_device ? 1 : 0;
    offer(parent, *above);
  }
  pages_.erase(node.at);
  nodes_.erase(id);
  moves.push_back({CacheMove::Kind::kDrop, id});
}

// Makes room for `slots` in host memory, by what was used longest ago. False: too much is in use.
bool PrefixCache::make_ram_room(int64_t slots, std::vector<CacheMove>& moves) {
  if (slots > limits_.ram_slots) return false;
  while (ram_slots_ + slots > limits_.ram_slots) {
    const bool has_page = !ram_evictable_.empty(), has_state = !ram_states_.empty();
    if (!has_page && !has_state) return false;
    if (has_page && (!has_state || ram_evictable_.begin()->first <= ram_states_.begin()->first)) {
      drop(ram_evictable_.begin()->second, moves);
      continue;
    }
    const PageId id = ram_states_.begin()->second;
    forget_state(id, nodes_.at(id));
    moves.push_back({CacheMove::Kind::kDropState, id});
  }
  return true;
}

bool PrefixCache::evict(std::vector<CacheMove>& moves) {
  if (evictable_.empty()) return false;
  const PageId id = evictable_.begin()->second;
  if (!make_ram_room(1, moves)) {
    drop(id, moves);
    return true;
  }
  Node& node = nodes_.at(id);
  withdraw(id, node);
  node.is_on_device = false;
  ++ram_slots_;
  --num_on_device_;
  --num_unused_;
  offer(id, node);
  if (Node* const parent = find(node.parent())) {
    withdraw(node.parent(), *parent);
    --parent->device_children;
    offer(node.parent(), *parent);
  }
  moves.push_back({CacheMove::Kind::kPageToRam, id});
  return true;
}

// Moves the least recently used state to host memory, or drops it.
void PrefixCache::evict_state(std::vector<CacheMove>& moves) {
  const PageId id = states_.begin()->second;
  const bool has_room = make_ram_room(limits_.state_slots, moves);
  Node* const node = find(id);
  if (node == nullptr) return;  // room for it took its page
  if (!has_room) {
    forget_state(id, *node);
    moves.push_back({CacheMove::Kind::kDropState, id});
    return;
  }
  states_.erase({node->state_use, id});
  node->state = Tier::kRam;
  ram_slots_ += limits_.state_slots;
  offer(id, *node);
  moves.push_back({CacheMove::Kind::kStateToRam, id});
}

bool PrefixCache::add_state(PageId page, SequenceId sequence, bool lasts,
                            std::vector<CacheMove>& moves) {
  Node& node = nodes_.at(page);
  lasts = lasts || node.state_lasts;
  node.state_lasts = lasts && node.state != Tier::kNone;
  if (limits_.num_states < 1 || node.state == Tier::kDevice) return false;
  if (node.state == Tier::kRam) {
    forget_state(page, node);
    moves.push_back({CacheMove::Kind::kDropState, page});
  }
  while (num_states() >= limits_.num_states) evict_state(moves);
  node.state = Tier::kDevice;
  node.state_lasts = lasts;
  node.state_use = ++clock_;
  states_.insert({node.state_use, page});
  moves.push_back({CacheMove::Kind::kKeepState, page, sequence});
  return true;
}

void PrefixCache::drop_state_if_unused(PageId page, std::vector<CacheMove>& moves) {
  Node* const node = find(page);
  if (node == nullptr || node->state == Tier::kNone || node->state_lasts) return;
  forget_state(page, *node);
  moves.push_back({CacheMove::Kind::kDropState, page});
}

void PrefixCache::drop_all(std::vector<CacheMove>& moves) {
  std::vector<PageId> unused, states;
  for (const auto& [id, node] : nodes_) {
    if (node.users == 0 && find(node.parent()) == nullptr)
      unused.push_back(id);
    else if (node.users > 0 && node.state != Tier::kNone)
      states.push_back(id);
  }
  for (const PageId id : unused) drop(id, moves);
  while (!evictable_.empty()) drop(evictable_.begin()->second, moves);
  while (!ram_evictable_.empty()) drop(ram_evictable_.begin()->second, moves);
  for (const PageId id : states) {
    forget_state(id, nodes_.at(id));
    moves.push_back({CacheMove::Kind::kDropState, id});
  }
}

}  // namespace moracle::serve
