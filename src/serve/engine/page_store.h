// KV caches of the running sequences, and the prefix cache's memory: pages and recurrent states, on
// the device and in host memory.
#pragma once

#include <unordered_map>

#include "models/state/sequence_state.h"
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
  /// Bytes of a recurrent state; 0: the model has none.
  int64_t state_bytes() const;
  /// Slots of host memory, of a page's size, that a recurrent state takes.
  int64_t state_slots() const;
  /// See ModelAccess::can_share_pages.
  bool can_share() const;
  /// See ModelAccess::is_recurrent.
  bool is_recurrent() const;

  /// Reserves host memory for pages and states that leave the device. Errors: kOutOfMemory.
  Status reserve_ram(int64_t slots);

  /// Creates a sequence's KV cache, with cached pages as its prefix, and the state at their end.
  /// Errors: of Model::make_cache; memory; a page or state that an earlier error lost.
  Status start(SequenceId id, int64_t capacity, std::span<const PageId> pages);
  /// Ignores unknown ids.
  void drop(SequenceId id) { caches_.erase(id); }
  /// Drops the positions after the first `length`. Ignores unknown ids. Errors: of
  /// KvCache::truncate.
  Status truncate(SequenceId id, int64_t length);
  void adopt(const Adoption& adoption);
  /// Applies a move. Errors: memory; those of the device. The page or state is then lost.
  Status move(const CacheMove& move);
  /// Totals of pages and states that came back from host memory.
  int64_t num_restored() const { return num_restored_; }
  int64_t bytes_restored() const { return bytes_restored_; }
  /// Runs the model. Errors: of Model::forward; an unknown sequence.
  Status forward(std::span<const SequenceStep> steps);

 private:
  using Slots = std::vector<int64_t>;
  KvPool& pages() const;
  KvPool& states() const;
  Device& device() const { return model_.device(); }
  void drop_all();
  void drop_cached(PageId page);
  void drop_state(PageId page);
  std::byte* slot(int64_t index) const;
  Result<Slots> take_slots(int64_t count);
  void free_slots(const Slots& slots);
  Status save(const std::byte* from, int64_t bytes, const Slots& slots);
  Status restore(std::byte* to, int64_t bytes, const Slots& slots);
  Status restore_state(PageId page, SequenceState& state);

  Model& model_;
  std::unordered_map<SequenceId, KvCache> caches_;
  std::unordered_map<PageId, std::byte*> cached_;  // holds a reference to each page
  std::unordered_map<PageId, std::byte*> states_;  // likewise
  Buffer ram_;
  Slots free_slots_;
  int64_t num_restored_ = 0, bytes_restored_ = 0;
  std::unordered_map<PageId, Slots> ram_pages_, ram_states_;
};

}  // namespace moracle::serve
