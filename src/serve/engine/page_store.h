// The caches of the running sequences, and the memory of the scheduler's cached pages.
#pragma once

#include <unordered_map>

#include "moracle/model.h"
#include "serve/scheduler/scheduler.h"

namespace moracle::serve {

/// Tokens of a sequence that follow those in its cache.
struct SequenceStep {
  SequenceId id = 0;
  std::span<const int32_t> tokens;
  int32_t adapter = -1;  ///< its index in the model
};

class PageStore {
 public:
  explicit PageStore(Model& model) : model_(model) {}
  ~PageStore() { drop_all(); }
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  /// Tokens and bytes per page.
  int64_t page() const;
  int64_t page_bytes() const;
  /// See ModelAccess::can_share_pages.
  bool can_share() const;

  /// Makes a cache that starts with these cached pages. Errors: of Model::make_cache.
  Status start(SequenceId id, int64_t capacity, std::span<const PageId> pages);
  /// Unknown ids are ignored.
  void drop(SequenceId id) { caches_.erase(id); }
  void adopt(const Adoption& adoption);
  void drop_pages(std::span<const PageId> pages);
  /// Runs the model. Errors: of Model::forward; a sequence that has not started.
  Status forward(std::span<const SequenceStep> steps);

 private:
  void drop_all();

  Model& model_;
  std::unordered_map<SequenceId, KvCache> caches_;
  std::unordered_map<PageId, std::byte*> cached_;  // this object owns a share of each
};

}  // namespace moracle::serve
