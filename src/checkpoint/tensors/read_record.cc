#include "checkpoint/tensors/read_record.h"

#include "base/checksum.h"

namespace moracle {

void ReadRecord::add(std::string_view tensor, int64_t first, std::span<const std::byte> bytes) {
  const uint64_t place = checksum(std::as_bytes(std::span(tensor)), static_cast<uint64_t>(first));
  const int which = own.load(std::memory_order_relaxed) ? 1 : 0;
  // A sum, so that the order of the threads does not matter.
  checksums_[which].fetch_add(checksum(bytes, place), std::memory_order_relaxed);
  bytes_[which].fetch_add(static_cast<int64_t>(bytes.size()), std::memory_order_relaxed);
}

}  // namespace moracle
