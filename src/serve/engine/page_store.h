// KV caches of the running sequences, and the prefix cache's page memory.
#pragma once

#include <unordered_map>

#include "moracle/model.h"
#include "serve/scheduler/scheduler.h"

namespace moracle::serve {

/// New tokens of a sequence, appended to its KV cache.
struct SequenceStep {
  SequenceId id = 0;
  std::span<const int32_t> tokens;
  int32_t adapter = -1;  ///< index in the model; -1: none
};

class PageStore {
 public:
  explicit PageStore(Model& model) : model_(model) {}
  ~PageStore() { drop_all(); }
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  /// Page size in tokens and in bytes.
  int64_t page() const;
  int64_t page_bytes() const;
  /// See ModelAccess::can_share_pages.
  bool can_share() const;
  /// See ModelAccess::is_recurrent.
  bool is_recurrent() const;

  /// Creates a sequence's KV cache, with cached pages as its prefix. Errors: of Model::make_cache.
  Status start(SequenceId id, int64_t capacity, std::span<const PageId> pages);
  /// Ignores unknown ids.
  void drop(SequenceId id) { caches_.erase(id); }
  /// Drops the positions after the first `length`. Ignores unknown ids. Errors: of
  /// KvCache::truncate.
  Status truncate(SequenceId id, int64_t length);
  void adopt(const Adoption& adoption);
  void drop_pages(std::span<const PageId> pages);
  /// Runs the model. Errors: of Model::forward; an unknown sequence.
  Status forward(std::span<const SequenceStep> steps);

 private:
  void drop_all();

  Model& model_;
  std::unordered_map<SequenceId, KvCache> caches_;
  std::unordered_map<PageId, std::byte*> cached_;  // holds a reference to each page
};

}  // namespace moracle::serve
