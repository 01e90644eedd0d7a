// Expects that a tiny model on ranks of threads has the bits of one process.
#pragma once

#include <gtest/gtest.h>

#include <mutex>

#include "model_on_ranks.h"
#include "ranks_of_threads.h"

namespace moracle::testing {

/// `change(options, group)` completes the options of a rank; with a null group, of the one process.
template <class Change>
void expect_bits_of_one_process(const std::string& name, int64_t size, const Change& change) {
  SCOPED_TRACE(::testing::Message() << name << " on " << size << " ranks");
  const std::vector<int32_t> ids = golden_reference(name).ids;
  ModelOptions one = options_on(nullptr, true, Placement::kLinear);
  change(one, std::shared_ptr<Group>());
  const auto alone = run_model(name, one, ids);
  ASSERT_TRUE(alone) << alone.error().to_string();
  std::mutex mutex;
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, true, Placement::kLinear);
    change(options, group);
    const auto got = run_model(name, options, ids);
    const std::lock_guard lock(mutex);
    if (!got) {
      group->abort(got.error());
      ADD_FAILURE() << got.error().to_string();
      return;
    }
    ASSERT_EQ(got->logits.size(), alone->logits.size());
    EXPECT_EQ(
        std::memcmp(got->logits.data(), alone->logits.data(), alone->logits.size() * sizeof(float)),
        0);
    EXPECT_EQ(got->greedy, alone->greedy);
    EXPECT_EQ(got->drawn, alone->drawn);
  });
}

}  // namespace moracle::testing
