// What rank 0 of a served model tells the others to do: orders, written one after another into a
// message of 64-bit words. All ranks run the same version, on machines with the same byte order.
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
  kAdopt,       ///< sequence, index, page, 1 if it is new
  kDropPages,   ///< cached pages
  kForward,     ///< number of steps; of each: sequence, adapter, token ids
  kLogits,      ///< first row, number of rows: to rank 0, from the ranks that computed them
  kTopKLogits,  ///< first row, number of rows, k: every rank's part of a divided output
  kReload,
  kAdapters,     ///< adapters to keep; a new one: its number, folder, and the folder around it
  kCountTokens,  ///< to rank 0: the tokens that chose each expert on each rank
  kOpenMoves,    ///< opens the checkpoint, to move experts
  kMoveExperts,  ///< layer, number of experts; of each rank: its experts
  kEndMoves,
  kCompare,  ///< rank 0's last work failed: did that of the others?
  kEnd,
};

class OrderWriter {
 public:
  void put(Order order) { words_.push_back(static_cast<int64_t>(order)); }
  void put(int64_t word) { words_.push_back(word); }
  void put(std::span<const int64_t> list);
  void put(std::span<const int32_t> list);
  void put(const std::string& text);
  /// Sends the orders since the last call to all other ranks, which may have waited for long.
  Status send(Group& group);

 private:
  std::vector<int64_t> words_;
};

class OrderReader {
 public:
  /// Waits for rank 0's next message without a limit of time.
  static Result<OrderReader> receive(Group& group);

  bool empty() const { return at_ == words_.size(); }
  Order order() { return static_cast<Order>(word()); }
  /// 0 beyond the end: see is_whole().
  int64_t word();
  std::vector<int64_t> list();
  std::vector<int32_t> ids();
  std::string text();
  /// False once something was read that the message did not have.
  bool is_whole() const { return is_whole_; }

 private:
  std::span<const int64_t> take(int64_t count);

  std::vector<int64_t> words_;
  size_t at_ = 0;
  bool is_whole_ = true;
};

}  // namespace moracle::serve
