#include "serve/engine/page_store.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle::serve {

int64_t PageStore::page() const {
  return ModelAccess::state(model_).cache_pool->page();
}

int64_t PageStore::page_bytes() const {
  return static_cast<int64_t>(ModelAccess::state(model_).cache_pool->page_bytes());
}

bool PageStore::can_share() const {
  return ModelAccess::can_share_pages(model_);
}

bool PageStore::is_recurrent() const {
  return ModelAccess::is_recurrent(model_);
}

Status PageStore::truncate(SequenceId id, int64_t length) {
  const auto at = caches_.find(id);
  return at == caches_.end() ? Status() : at->second.truncate(length);
}

KvPool& PageStore::pages() const {
  return *ModelAccess::state(model_).cache_pool;
}

KvPool& PageStore::states() const {
  return *ModelAccess::state(model_).state_pool;
}

int64_t PageStore::state_bytes() const {
  return is_recurrent() ? static_cast<int64_t>(states().page_bytes()) : 0;
}

int64_t PageStore::state_slots() const {
  return (state_bytes() + page_bytes() - 1) / page_bytes();
}

Status PageStore::reserve_ram(int64_t slots) {
  free_slots_.reserve(static_cast<size_t>(slots));
  MORACLE_TRY(ram_, device().allocate_host(static_cast<size_t>(slots * page_bytes())));
  for (int64_t i = slots; i > 0; --i) free_slots_.push_back(i - 1);
  return {};
}

std::byte* PageStore::slot(int64_t index) const {
  return ram_.as<std::byte>() + index * page_bytes();
}

// The scheduler counts slots, so that there are enough, except after errors.
Result<PageStore::Slots> PageStore::take_slots(int64_t count) {
  if (count > static_cast<int64_t>(free_slots_.size())) {
    return Error{ErrorKind::kOutOfMemory, "", "cache_ram", str(count, " free slots"),
                 str("there are ", free_slots_.size())};
  }
  Slots taken(free_slots_.end() - count, free_slots_.end());
  free_slots_.resize(free_slots_.size() - static_cast<size_t>(count));
  return taken;
}

void PageStore::free_slots(const Slots& slots) {
  free_slots_.insert(free_slots_.end(), slots.begin(), slots.end());
}

Status PageStore::save(const std::byte* from, int64_t bytes, const Slots& slots) {
  const DeviceLock lock = device().lock();
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * page_bytes();
    const auto count = static_cast<size_t>(std::min(page_bytes(), bytes - at));
    MORACLE_CHECK(device().download(slot(slots[i]), from + at, count));
  }
  return {};
}

Status PageStore::restore(std::byte* to, int64_t bytes, const Slots& slots) {
  const DeviceLock lock = device().lock();
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * page_bytes();
    const auto count = static_cast<size_t>(std::min(page_bytes(), bytes - at));
    MORACLE_CHECK(device().upload(to + at, slot(slots[i]), count));
  }
  ++num_restored_;
  bytes_restored_ += bytes;
  return {};
}

Status PageStore::restore_state(PageId page, SequenceState& state) {
  if (const auto kept = states_.find(page); kept != states_.end()) {
    state.restore(kept->second);
    return {};
  }
  const auto in_ram = ram_states_.find(page);
  if (in_ram == ram_states_.end()) {
    return Error{ErrorKind::kIo, "", "prefix cache", "the state of a cached prefix",
                 "an earlier error lost it; repeat the request"};
  }
  MORACLE_TRY(std::byte* const memory, state.restore_new());
  return restore(memory, state_bytes(), in_ram->second);
}

Status PageStore::start(SequenceId id, int64_t capacity, std::span<const PageId> pages) {
  std::vector<std::byte*> memory;
  for (const PageId page : pages) {
    const auto at = cached_.find(page);
    if (at == cached_.end()) {
      return Error{ErrorKind::kIo, "", "prefix cache", "the page of a cached prefix",
                   "an earlier error lost it; repeat the request"};
    }
    memory.push_back(at->second);
  }
  MORACLE_TRY(KvCache cache, ModelAccess::make_cache(model_, capacity, memory));
  if (is_recurrent() && !pages.empty())
    MORACLE_CHECK(restore_state(pages.back(), ModelAccess::state(cache).recurrent));
  caches_.insert_or_assign(id, std::move(cache));
  return {};
}

void PageStore::adopt(const Adoption& adoption) {
  std::byte*& own = ModelAccess::state(caches_.at(adoption.id)).pages.at(adoption.index);
  if (adoption.is_new) {
    cached_[adoption.page] = own;
    // The page may have a copy in host memory.
    if (const auto copy = ram_pages_.find(adoption.page); copy != ram_pages_.end()) {
      free_slots(copy->second);
      ram_pages_.erase(copy);
    }
  } else {
    pages().release(own);
    own = cached_.at(adoption.page);
  }
  pages().share(own);
}

void PageStore::drop_cached(PageId page) {
  if (const auto at = cached_.find(page); at != cached_.end()) {
    pages().release(at->second);
    cached_.erase(at);
  }
  if (const auto at = ram_pages_.find(page); at != ram_pages_.end()) {
    free_slots(at->second);
    ram_pages_.erase(at);
  }
}

void PageStore::drop_state(PageId page) {
  if (const auto at = states_.find(page); at != states_.end()) {
    states().release(at->second);
    states_.erase(at);
  }
  if (const auto at = ram_states_.find(page); at != ram_states_.end()) {
    free_slots(at->second);
    ram_states_.erase(at);
  }
}

Status PageStore::move(const CacheMove& move) {
  const PageId page = move.page;
  switch (move.kind) {
    case CacheMove::Kind::kDrop:
      drop_cached(page);
      drop_state(page);
      return {};
    case CacheMove::Kind::kDropState:
      drop_state(page);
      return {};
    case CacheMove::Kind::kKeepState: {
      const auto at = caches_.find(move.sequence);
      std::byte*& kept = states_[page];
      kept = at == caches_.end() ? nullptr : ModelAccess::state(at->second).recurrent.share();
      if (kept == nullptr) states_.erase(page);
      return {};
    }
    case CacheMove::Kind::kPageToRam: {
      const auto at = cached_.find(page);
      if (at == cached_.end()) return {};
      Slots& slots = ram_pages_[page];
      MORACLE_TRY(slots, take_slots(1));
      const Status saved = save(at->second, page_bytes(), slots);
      pages().release(at->second);
      cached_.erase(at);
      if (!saved) drop_cached(page);
      return saved;
    }
    case CacheMove::Kind::kStateToRam: {
      const auto at = states_.find(page);
      if (at == states_.end()) return {};
      Slots& slots = ram_states_[page];
      MORACLE_TRY(slots, take_slots(state_slots()));
      const Status saved = save(at->second, state_bytes(), slots);
      states().release(at->second);
      states_.erase(at);
      if (!saved) drop_state(page);
      return saved;
    }
    case CacheMove::Kind::kPageToDevice: {
      const auto at = ram_pages_.find(page);
      if (at == ram_pages_.end()) return {};
      std::vector<std::byte*> memory;
      Status restored = pages().grow(memory, 1);
      if (restored) {
        restored = restore(memory[0], page_bytes(), at->second);
        cached_[page] = memory[0];
      }
      free_slots(at->second);
      ram_pages_.erase(at);
      if (!restored) drop_cached(page);
      return restored;
    }
  }
  return {};
}

Status PageStore::forward(std::span<const SequenceStep> steps) {
  std::vector<Model::Step> of_model;
  for (const SequenceStep& step : steps) {
    const auto at = caches_.find(step.id);
    if (at == caches_.end()) {
      return Error{ErrorKind::kInvalidArgument, "", str("sequence ", step.id), "a running sequence",
                   "it has no KV cache"};
    }
    of_model.push_back({step.tokens, &at->second, step.adapter});
  }
  return model_.forward(of_model);
}

void PageStore::drop_all() {
  // Copies from and to host memory may be under way. Destructor: the error is dropped.
  if (!ram_pages_.empty() || !ram_states_.empty() || num_restored_ > 0)
    (void)device().synchronize().ok();
  caches_.clear();
  for (const auto& [page, memory] : cached_) pages().release(memory);
  for (const auto& [page, memory] : states_) states().release(memory);
}

}  // namespace moracle::serve
