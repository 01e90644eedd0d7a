// Orders of rank 0 to the other ranks of a served model. A message is a sequence of orders in
// 64-bit words. All ranks must run the same build, with the same byte order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/parallel.h"

namespace moracle::serve {

enum class Order : int64_t {
  kStart,       ///< sequence, capacity, cached pages
  kDrop,        ///< sequence
  kTruncate,    ///< sequence, length
  kAdopt,       ///< sequence, page index, cached page, 1 if it is new
  kMove,        ///< kind, cached page, sequence: see CacheMove
  kReserveRam,  ///< slots of host memory for cached pages and states
  kForward,     ///< number of steps; per step: sequence, adapter, token ids
  kLogits,      ///< first row, number of rows: gathers them on rank 0
  kTopKLogits,  ///< first row, number of rows, k: tensor-parallel lm_head
  kReload,
  kAdapters,     ///< adapters that stay; new adapter: number, folder, enclosing folder
  kCountTokens,  ///< gathers token counts per expert on rank 0
  kOpenMoves,    ///< opens the checkpoint for kMoveExperts
  kMoveExperts,  ///< layer, number of experts; per rank: its experts
  kEndMoves,
  kCompare,  ///< the last order failed on rank 0: gathers which ranks failed
  kEnd,
};

class OrderWriter {
 public:
  void put(Order order) { words_.push_back(static_cast<int64_t>(order)); }
  void put(int64_t word) { words_.push_back(word); }
  void put(std::span<const int64_t> list);
  void put(std::span<const int32_t> list);
  void put(const std::string& text);
  /// Sends the queued orders to all other ranks, which may have waited for long.
  Status send(Group& group);

 private:
  std::vector<int64_t> words_;
};

class OrderReader {
 public:
  /// Waits for rank 0's next message without a timeout.
  static Result<OrderReader> receive(Group& group);

  bool empty() const { return at_ == words_.size(); }
  Order order() { return static_cast<Order>(word()); }
  /// Returns 0 beyond the end: check is_whole().
  int64_t word();
  std::vector<int64_t> list();
  std::vector<int32_t> ids();
  std::string text();
  /// False after a read beyond the end of the message.
  bool is_whole() const { return is_whole_; }

 private:
  std::span<const int64_t> take(int64_t count);

  std::vector<int64_t> words_;
  size_t at_ = 0;
  bool is_whole_ = true;
};

}  // namespace moracle::serve
