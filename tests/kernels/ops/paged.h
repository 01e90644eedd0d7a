// Caches of several sequences in pages, on the host and on a device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/scalar.h"
#include "kernels/ops.h"

namespace moracle::testing {

class PagedCaches {
 public:
  /// One cache per capacity, in positions. A position has `key_row` and `value_row` elements, all
  /// NaN until they are written. They belong to `heads` heads.
  PagedCaches(const std::vector<int64_t>& capacities, int64_t key_row, int64_t value_row,
              DType dtype, int64_t page, int64_t heads = 1)
      : key_row_(key_row), value_row_(value_row), page_(page) {
    // The bytes before the keys represent another layer.
    page_bytes_ = 256;
    const auto offset = [&](int64_t bytes_of_head) {
      const int64_t at = page_bytes_;
      page_bytes_ += (page * heads * bytes_of_head + 255) / 256 * 256;
      return at;
    };
    layer_ = {dtype, offset(cached_bytes(dtype, key_row / heads)),
              offset(cached_bytes(dtype, value_row / heads)), heads};
    if (dtype == DType::kI8) layer_.key_scales = offset(4), layer_.value_scales = offset(4);
    int64_t pages = 0;
    for (const int64_t capacity : capacities) {
      std::vector<int64_t>& own = numbers_.emplace_back();
      for (int64_t i = 0; i < (capacity + page - 1) / page; ++i) own.push_back(pages++);
    }
    // Neighbouring pages of a sequence are not neighbours in memory.
    for (std::vector<int64_t>& own : numbers_) {
      for (int64_t& number : own) number = pages - 1 - number;
    }
    memory_.assign(pages * page_bytes_, std::byte{0xff});
  }

  const LayerCache& layer() const { return layer_; }
  std::byte* key(size_t s, int64_t position) { return row(s, position, layer_.keys, key_row_); }
  std::byte* value(size_t s, int64_t position) {
    return row(s, position, layer_.values, value_row_);
  }
  // Only for caches of floats, because int8 codes have another order.
  void set(std::byte* to, const float* row, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      if (layer_.dtype == DType::kF32) {
        reinterpret_cast<float*>(to)[i] = row[i];
      } else if (layer_.dtype == DType::kF8E4M3) {
        reinterpret_cast<uint8_t*>(to)[i] = float_to_e4m3(row[i]);
      } else {
        reinterpret_cast<uint16_t*>(to)[i] =
            layer_.dtype == DType::kBF16 ? float_to_bf16(row[i]) : float_to_f16(row[i]);
      }
    }
  }
  float get(const std::byte* from, int64_t i) const {
    if (layer_.dtype == DType::kF32) return reinterpret_cast<const float*>(from)[i];
    if (layer_.dtype == DType::kF8E4M3)
      return e4m3_to_float(reinterpret_cast<const uint8_t*>(from)[i]);
    const uint16_t half = reinterpret_cast<const uint16_t*>(from)[i];
    return layer_.dtype == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
  }

  struct Tokens {
    size_t sequence;
    int64_t position, count;
  };
  /// A step over the caches on the host. Valid until the next call of batch or batch_there.
  const Batch& batch(const std::vector<Tokens>& step, Device& device) {
    return batch(step, device, memory_.data());
  }

  /// Copies the caches to a device, in the device's order. Batches made for that device then refer
  /// to the copy.
  void upload(Device& device) {
    if (there_.bytes() == 0) there_ = *device.allocate(memory_.size());
    const std::vector<std::byte> all = reordered(device, page_, layer_.num_heads);
    EXPECT_TRUE(device.upload(there_.data(), all.data(), all.size()));
    EXPECT_TRUE(device.synchronize());
  }
  void download(Device& device) {
    EXPECT_TRUE(device.download(memory_.data(), there_.data(), memory_.size()));
    EXPECT_TRUE(device.synchronize());
    memory_ = reordered(device, layer_.num_heads, page_);
  }
  const Batch& batch_there(const std::vector<Tokens>& step, Device& device) {
    return batch(step, device, there_.as<std::byte>());
  }

 private:
  // The memory with keys and values [outer, inner, dim] as [inner, outer, dim], for a device that
  // orders them by head.
  std::vector<std::byte> reordered(Device& device, int64_t outer, int64_t inner) const {
    std::vector<std::byte> to = memory_;
    if (!kernel_device(device).ops().cache_by_head()) return to;
    for (size_t page = 0; page < memory_.size(); page += page_bytes_) {
      for (const auto& [offset, row] :
           {std::pair(layer_.keys, key_row_), std::pair(layer_.values, value_row_)}) {
        const int64_t bytes = row / layer_.num_heads * bits(layer_.dtype) / 8;
        for (int64_t o = 0; o < outer; ++o) {
          for (int64_t i = 0; i < inner; ++i)
            std::memcpy(&to[page + offset + (i * outer + o) * bytes],
                        &memory_[page + offset + (o * inner + i) * bytes], bytes);
        }
      }
    }
    return to;
  }
  std::byte* row(size_t s, int64_t position, int64_t offset, int64_t elements) {
    return memory_.data() + numbers_[s][position / page_] * page_bytes_ + offset +
           position % page_ * elements * bits(layer_.dtype) / 8;
  }
  const Batch& batch(const std::vector<Tokens>& step, Device& device, std::byte* memory) {
    std::vector<std::vector<std::byte*>> pages;
    std::vector<std::vector<int32_t>> ids;
    std::vector<SequenceTokens> sequences;
    for (const Tokens& one : step) {
      for (std::vector<std::byte*>& own = pages.emplace_back();
           const int64_t number : numbers_[one.sequence])
        own.push_back(memory + number * page_bytes_);
      ids.emplace_back(one.count);
    }
    for (size_t s = 0; s < step.size(); ++s)
      sequences.push_back({ids[s], step[s].position, pages[s]});
    EXPECT_TRUE(table_.fill(sequences, page_, device, {}));
    return table_.batch();
  }

  int64_t key_row_, value_row_, page_, page_bytes_ = 0;
  LayerCache layer_;
  std::vector<std::vector<int64_t>> numbers_;  // of the pages of each sequence
  std::vector<std::byte> memory_;
  Buffer there_;
  BatchTable table_;
};

}  // namespace moracle::testing
