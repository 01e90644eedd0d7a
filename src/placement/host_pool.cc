#include "placement/host_pool.h"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/kernel_device.h"

namespace moracle {

std::vector<std::vector<int32_t>> HostPool::shares(std::span<const int32_t> experts) const {
  std::vector<int32_t> order(experts.begin(), experts.end());
  // Those in memory first, so that none of them is replaced before it is used.
  const auto is_kept = [&](int32_t e) { return by_call_ ? e < fixed_ : slot_of(e) >= 0; };
  const auto others = std::stable_partition(order.begin(), order.end(), is_kept);
  // By call, the first share has all fixed experts and as many others as the other half holds.
  const auto first =
      by_call_ ? std::min<int64_t>(others - order.begin() + table_.num_slots() - fixed_,
                                   static_cast<int64_t>(order.size()))
               : std::min<int64_t>(table_.num_slots(), static_cast<int64_t>(order.size()));
  const int64_t most = by_call_ ? table_.num_slots() - fixed_ : table_.num_slots();
  std::vector<std::vector<int32_t>> all;
  for (int64_t at = 0; at < static_cast<int64_t>(order.size());) {
    const int64_t count = std::min(at == 0 ? first : most, static_cast<int64_t>(order.size()) - at);
    all.emplace_back(order.begin() + at, order.begin() + at + count);
    at += count;
  }
  return all;
}

int64_t HostPool::free_slot(std::span<const int32_t> share, int64_t missing) const {
  if (by_call_) return fixed_ + missing;
  int64_t best = -1;
  for (int64_t slot = 0; slot < table_.num_slots(); ++slot) {
    const int32_t expert = table_.expert_in(slot);
    if (expert < 0) return slot;
    if (std::find(share.begin(), share.end(), expert) != share.end()) continue;
    if (best < 0 || used_[slot] < used_[best]) best = slot;
  }
  return best;
}

Status HostPool::hold(FusedMoe& pool, std::span<const int32_t> share) {
  struct Read {
    int32_t expert;
    int64_t slot;
  };
  ++now_;
  std::vector<Read> reads;
  int64_t at = 0;  // by call: of the experts outside the fixed half
  for (const int32_t expert : share) {
    const int64_t place = by_call_ && expert >= fixed_ ? fixed_ + at++ : slot_of(expert);
    if (place >= 0 && slot_of(expert) == place) {
      used_[place] = now_;
      continue;
    }
    reads.push_back({expert, by_call_ ? (expert < fixed_ ? expert : place) : int64_t{-1}});
  }
  for (Read& read : reads) {
    if (read.slot < 0) read.slot = free_slot(share, 0);
    table_.clear(read.slot);
    if (const int32_t other = table_.slot_of(read.expert); other >= 0) table_.clear(other);
    table_.begin(read.expert, read.slot);
    used_[read.slot] = now_;
  }
  ThreadPool& threads = kernel_device(MoeAccess::device_of(pool)).host_threads();
  const auto count = static_cast<int64_t>(2 * reads.size());
  std::mutex mutex;
  std::optional<Error> error;
  const auto read_one = [&](int64_t i, ThreadPool& with) {
    const Read& read = reads[i / 2];
    Status done = MoeAccess::read_expert(pool, weights_, i % 2 == 0, read.expert, read.slot, with);
    if (done) return;
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(done).error();
  };
  if (count < threads.size()) {
    for (int64_t i = 0; i < count; ++i) read_one(i, threads);
  } else {
    threads.split(count, [&](int64_t begin, int64_t end) {
      ThreadPool alone(1);
      for (int64_t i = begin; i < end; ++i) read_one(i, alone);
    });
  }
  for (const Read& read : reads) {
    Status done;
    if (!error) done = MoeAccess::expert_read(pool, weights_, read.expert, read.slot);
    if (!done) error = std::move(done).error();
    if (error)
      table_.clear(read.slot);
    else
      table_.finish(read.slot);
  }
  if (error) return *std::move(error);
  reads_ += static_cast<int64_t>(reads.size());
  return {};
}

Status HostPool::fill(FusedMoe& pool, const Progress& progress) {
  std::vector<int32_t> all(static_cast<size_t>(table_.num_slots()));
  std::iota(all.begin(), all.end(), 0);
  const int64_t total = weights_.w13.source_bytes() + weights_.w2.source_bytes();
  const auto few = static_cast<size_t>(
      std::max(kernel_device(MoeAccess::device_of(pool)).host_threads().size(), 1));
  for (size_t at = 0; at < all.size(); at += few) {
    const size_t count = std::min(few, all.size() - at);
    MORACLE_CHECK(hold(pool, std::span(all).subspan(at, count)));
    const auto done = static_cast<int64_t>(at + count);
    if (!progress || progress(total * done / static_cast<int64_t>(all.size()), total)) continue;
    return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
  }
  return {};
}

void HostPool::replace(DescribedWeights&& weights) {
  weights_ = std::move(weights);
  for (int64_t slot = 0; slot < table_.num_slots(); ++slot) table_.clear(slot);
}

}  // namespace moracle
