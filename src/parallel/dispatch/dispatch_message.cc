#include "parallel/dispatch/dispatch_message.h"

#include <cstring>

#include "base/text.h"

namespace moracle {

void DispatchMessage::write(const Head& head, const int32_t* ids, const float* weights,
                            std::byte* to) const {
  const Offsets at = offsets(head.rows);
  const auto bytes = static_cast<size_t>(head.rows * top_k * 4);
  std::memcpy(to, &head, sizeof head);
  if (bytes == 0) return;
  std::memcpy(to + at.ids, ids, bytes);
  std::memcpy(to + at.weights, weights, bytes);
}

Result<DispatchMessage::Head> DispatchMessage::read_head(std::span<const std::byte> message,
                                                         int64_t rank) const {
  Head head;
  const auto bytes = static_cast<int64_t>(message.size());
  if (message.size() >= sizeof head) std::memcpy(&head, message.data(), sizeof head);
  const bool fits = bytes >= offsets(0).bytes && head.rows >= 0 && head.rows <= bytes / top_k &&
                    head.slots >= 0 && head.slots <= head.rows * top_k;
  if (fits && offsets(head.rows).bytes == bytes) return head;
  return Error{ErrorKind::kIo, "", str("rank ", rank), "rows of the same layer",
               str("it sent a message of ", bytes, " bytes for ", head.rows,
                   " rows: the ranks do not agree")};
}

}  // namespace moracle
