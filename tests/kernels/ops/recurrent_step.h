// Steps of sequences with recurrent states, for tests of operations.
#pragma once

#include <algorithm>

#include "kernels/ops/device_ops.h"

namespace moracle::testing {

class RecurrentOpsTest : public DeviceOpsTest {
 protected:
  /// A step of sequences of `counts` tokens. `states` are those of each before and after.
  Batch batch(const std::vector<int64_t>& counts, const std::vector<std::byte*>& states) {
    std::vector<int32_t> sequences, first = {0};
    for (size_t s = 0; s < counts.size(); ++s) {
      sequences.insert(sequences.end(), counts[s], static_cast<int32_t>(s));
      first.push_back(static_cast<int32_t>(sequences.size()));
    }
    Batch step;
    step.num_tokens = static_cast<int64_t>(sequences.size());
    step.num_sequences = static_cast<int64_t>(counts.size());
    step.most_tokens = *std::max_element(counts.begin(), counts.end());
    step.fewest_tokens = *std::min_element(counts.begin(), counts.end());
    step.sequences = upload(sequences);
    step.first_token = upload(first);
    step.states = upload(states);
    return step;
  }
  std::byte* state(const std::vector<float>& values) {
    return reinterpret_cast<std::byte*>(upload(values));
  }
  std::vector<float> row(const std::vector<float>& all, int64_t cols, int64_t r) {
    return {all.begin() + r * cols, all.begin() + (r + 1) * cols};
  }
};

}  // namespace moracle::testing
