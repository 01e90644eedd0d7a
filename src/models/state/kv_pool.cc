#include "models/state/kv_pool.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Status KvPool::grow(std::vector<std::byte*>& pages, int64_t length) {
  const int64_t wanted = pages_of(length) - static_cast<int64_t>(pages.size());
  if (wanted <= 0) return {};
  const std::lock_guard lock(mutex_);
  while (static_cast<int64_t>(free_.size()) < wanted)
    MORACLE_CHECK(take_slab(wanted - static_cast<int64_t>(free_.size())));
  for (int64_t i = 0; i < wanted; ++i) {
    pages.push_back(free_.back());
    free_.pop_back();
  }
  return {};
}

void KvPool::shrink(std::vector<std::byte*>& pages, int64_t length) {
  const std::lock_guard lock(mutex_);
  while (static_cast<int64_t>(pages.size()) > pages_of(length)) {
    release_locked(pages.back());
    pages.pop_back();
  }
}

void KvPool::share(std::byte* page) {
  const std::lock_guard lock(mutex_);
  ++more_owners_[page];
}

void KvPool::release(std::byte* page) {
  const std::lock_guard lock(mutex_);
  release_locked(page);
}

void KvPool::release_locked(std::byte* page) {
  const auto shared = more_owners_.find(page);
  if (shared == more_owners_.end())
    free_.push_back(page);
  else if (--shared->second == 0)
    more_owners_.erase(shared);
}

Status KvPool::take_slab(int64_t pages_wanted) {
  // GPU memory comes in large pieces, and allocation costs time. CPU memory is committed on first
  // use.
  constexpr size_t kSlab = size_t{32} << 20;
  const int64_t together =
      device_->host_visible() ? 1 : static_cast<int64_t>(kSlab / std::max<size_t>(page_bytes_, 1));
  int64_t count = std::max<int64_t>(1, together);
  if (most_bytes_ > 0) {
    const int64_t left =
        most_bytes_ / std::max<int64_t>(1, static_cast<int64_t>(page_bytes_)) - num_pages_;
    count = std::min(count, left);
    if (left < pages_wanted) {
      return Error{ErrorKind::kOutOfMemory, "", "kv cache",
                   str(pages_wanted, " more pages of ", page_, " positions, ",
                       pages_wanted * static_cast<int64_t>(page_bytes_), " bytes"),
                   str("the limit of ", most_bytes_, " bytes leaves ",
                       left + static_cast<int64_t>(free_.size()))};
    }
  }
  MORACLE_TRY(Buffer slab, device_->allocate(static_cast<size_t>(count) * page_bytes_));
  // Reserve for all pages, so that shrink() never allocates.
  const auto all = static_cast<size_t>(num_pages_ + count);
  if (all > free_.capacity()) free_.reserve(std::max(all, 2 * free_.capacity()));
  std::byte* const first = slab.as<std::byte>();
  slabs_.push_back(std::move(slab));
  // Push in reverse order, so that grow() takes the first page of a slab first.
  for (int64_t i = count - 1; i >= 0; --i)
    free_.push_back(first + static_cast<size_t>(i) * page_bytes_);
  num_pages_ += count;
  return {};
}

}  // namespace moracle
