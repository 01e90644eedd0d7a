// The memory between the modules of a model: one block, sized before anything is loaded.
#pragma once

#include "models/attention.h"
#include "models/feed_forward.h"

namespace moracle {

/// [max_num_tokens, …] each; layers run in turn and share them.
struct Activations {
  Matrix hidden, normed, added;
  FeedForwardRooms feed_forward;
  std::byte* attention = nullptr;  ///< the largest room of any layer's attention
  Matrix logits;                   ///< [kMaxLogitRows, vocab_size] f32
  int32_t* largest_ids = nullptr;  ///< [kMaxLogitRows, kMaxLargest], as are the
  float* largest = nullptr;        ///< logits themselves
  std::byte* largest_room = nullptr;
  size_t bytes = 0;
};
/// Without `base` only the bytes mean something.
Activations carve_activations(const Description& description, int64_t max_num_tokens, DType dtype,
                              std::byte* base);

}  // namespace moracle
