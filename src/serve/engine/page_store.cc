#include "serve/engine/page_store.h"

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

Status PageStore::start(SequenceId id, int64_t capacity, std::span<const PageId> pages) {
  std::vector<std::byte*> memory;
  for (const PageId page : pages) memory.push_back(cached_.at(page));
  MORACLE_TRY(KvCache cache, ModelAccess::make_cache(model_, capacity, memory));
  caches_.insert_or_assign(id, std::move(cache));
  return {};
}

void PageStore::adopt(const Adoption& adoption) {
  KvPool& pool = *ModelAccess::state(model_).cache_pool;
  std::byte*& own = ModelAccess::state(caches_.at(adoption.id)).pages.at(adoption.index);
  if (adoption.is_new) {
    cached_[adoption.page] = own;
  } else {
    pool.release(own);
    own = cached_.at(adoption.page);
  }
  pool.share(own);
}

void PageStore::drop_pages(std::span<const PageId> pages) {
  KvPool& pool = *ModelAccess::state(model_).cache_pool;
  for (const PageId page : pages) {
    pool.release(cached_.at(page));
    cached_.erase(page);
  }
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
  caches_.clear();
  for (const auto& [page, memory] : cached_) ModelAccess::state(model_).cache_pool->release(memory);
}

}  // namespace moracle::serve
