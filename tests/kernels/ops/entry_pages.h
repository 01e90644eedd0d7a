// Pages of a layer with compressed attention, and steps of its sequences.
#pragma once

#include <algorithm>
#include <vector>

#include "base/scalar.h"
#include "kernels/kernel_device.h"
#include "kernels/ops/device_ops.h"

namespace moracle::testing {

/// OpenCL has no kernels for compressed attention.
class EntryOpsTest : public DeviceOpsTest {
 protected:
  struct Tokens {
    int64_t position, count;
  };
  struct Sizes {
    int64_t rate, dim, key_dim;
  };

  void SetUp() override {
    DeviceOpsTest::SetUp();
    if (IsSkipped()) return;
    if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "OpenCL has no kernels for it";
  }

  /// Pages for sequences of up to `longest` positions; all elements are NaN.
  void make_pages(const Sizes& sizes, int64_t longest, int64_t num_sequences) {
    sizes_ = sizes;
    page_ = std::min<int64_t>(256, cache_page(device_->platform()));
    page_bytes_ = 256;  // of another layer
    const auto take = [&](int64_t rows, int64_t dim) {
      const int64_t at = page_bytes_;
      page_bytes_ += (rows * dim * bits(dtype()) / 8 + 255) / 256 * 256;
      return at;
    };
    cache_ = {.dtype = dtype(), .index_dtype = dtype()};
    cache_.keys = take(page_, sizes.dim);
    cache_.entries = take(entries_per_page(sizes.rate, page_), sizes.dim);
    cache_.entry_keys = take(entries_per_page(sizes.rate, page_), sizes.key_dim);
    of_sequence_ = (longest + page_ - 1) / page_;
    memory_.assign(of_sequence_ * num_sequences * page_bytes_, std::byte{0xff});
  }
  void upload_pages() { there_ = upload(memory_); }
  void download_pages() { memory_ = download(there_, std::ssize(memory_)); }

  /// A step. `states`: see Batch::states; may be empty.
  const Batch& batch(const std::vector<Tokens>& step, const std::vector<std::byte*>& states = {}) {
    std::vector<std::vector<int32_t>> ids;
    std::vector<std::vector<std::byte*>> pages;
    std::vector<SequenceTokens> sequences;
    for (size_t s = 0; s < step.size(); ++s) {
      ids.emplace_back(step[s].count);
      std::vector<std::byte*>& own = pages.emplace_back();
      for (int64_t i = 0; i < of_sequence_; ++i) own.push_back(there_ + number(s, i) * page_bytes_);
    }
    for (size_t s = 0; s < step.size(); ++s) {
      SequenceTokens tokens{ids[s], step[s].position, pages[s]};
      if (!states.empty()) {
        tokens.state_before = states[2 * s];
        tokens.state_after = states[2 * s + 1];
      }
      sequences.push_back(tokens);
    }
    expect_done(table_.fill(sequences, page_, *device_, {}));
    return table_.batch();
  }
  static int64_t count_of(const std::vector<Tokens>& step) {
    int64_t count = 0;
    for (const Tokens& one : step) count += one.count;
    return count;
  }

  // Rows on the host.
  std::byte* position_row(size_t s, int64_t p) {
    return row(s, p / page_, cache_.keys, p % page_, sizes_.dim);
  }
  std::byte* entry_row(size_t s, int64_t e) {
    const EntryPlace place = entry_place(e, sizes_.rate, page_);
    return row(s, place.page, cache_.entries, place.row, sizes_.dim);
  }
  std::byte* entry_key_row(size_t s, int64_t e) {
    const EntryPlace place = entry_place(e, sizes_.rate, page_);
    return row(s, place.page, cache_.entry_keys, place.row, sizes_.key_dim);
  }
  /// Writes numbers that the device's activations hold exactly.
  void set(std::byte* to, const float* from, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      if (dtype() == DType::kF32)
        reinterpret_cast<float*>(to)[i] = from[i];
      else
        reinterpret_cast<uint16_t*>(to)[i] = float_to_bf16(from[i]);
    }
  }
  std::vector<float> get(const std::byte* from, int64_t count) const {
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = dtype() == DType::kF32
                      ? reinterpret_cast<const float*>(from)[i]
                      : bf16_to_float(reinterpret_cast<const uint16_t*>(from)[i]);
    }
    return values;
  }

  LayerCache cache_;

 private:
  // Neighbouring pages of a sequence are not neighbours in memory.
  int64_t number(size_t s, int64_t i) const {
    return static_cast<int64_t>(s + 1) * of_sequence_ - 1 - i;
  }
  std::byte* row(size_t s, int64_t page, int64_t offset, int64_t at, int64_t dim) {
    return memory_.data() + number(s, page) * page_bytes_ + offset + at * dim * bits(dtype()) / 8;
  }

  Sizes sizes_{};
  int64_t page_ = 0, page_bytes_ = 0, of_sequence_ = 0;
  std::vector<std::byte> memory_;
  std::byte* there_ = nullptr;
  BatchTable table_;
};

}  // namespace moracle::testing
