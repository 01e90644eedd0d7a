// Memory for keys and values in pages of a fixed number of positions. One page holds all layers of
// a position. A sequence takes pages as it grows and returns them when it is truncated or ends.
// Several sequences with the same beginning may share its full pages. A second pool holds the state
// of recurrent layers; a page is then one state.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "moracle/device.h"

namespace moracle {

class KvPool {
 public:
  /// `most_bytes` limits all pages together; 0: as many pages as the device has memory for.
  KvPool(std::shared_ptr<Device> device, int64_t page, size_t page_bytes, int64_t most_bytes)
      : device_(std::move(device)), page_(page), page_bytes_(page_bytes), most_bytes_(most_bytes) {}

  int64_t page() const { return page_; }
  size_t page_bytes() const { return page_bytes_; }
  /// Number of pages that `length` positions take.
  int64_t pages_of(int64_t length) const { return (length + page_ - 1) / page_; }

  /// Adds pages until `pages` holds `length` positions. Errors: kOutOfMemory, with the needed and
  /// available amounts; `pages` is then unchanged.
  Status grow(std::vector<std::byte*>& pages, int64_t length);
  /// Takes back the pages that `length` positions do not need.
  void shrink(std::vector<std::byte*>& pages, int64_t length);
  /// Adds an owner to a page in use. Each owner gives it back once, by shrink() or release(). The
  /// owners only read the page.
  void share(std::byte* page);
  void release(std::byte* page);

 private:
  Status take_slab(int64_t pages_wanted);
  void release_locked(std::byte* page);

  const std::shared_ptr<Device> device_;
  const int64_t page_;
  const size_t page_bytes_;
  const int64_t most_bytes_;
  std::mutex mutex_;
  std::vector<Buffer> slabs_;
  int64_t num_pages_ = 0;
  std::vector<std::byte*> free_;
  std::unordered_map<std::byte*, int64_t> more_owners_;  // of pages with more than one
};

}  // namespace moracle
