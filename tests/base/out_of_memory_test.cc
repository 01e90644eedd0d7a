// Tests that exceptions of the standard library become errors.
#include "base/out_of_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace moracle::out_of_memory_test {
namespace {

TEST(OutOfMemory, ErrorNamesPlace) {
  const Status refused =
      or_out_of_memory("model folder", []() -> Status { throw std::bad_alloc(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(refused.error().to_string(),
            "model folder: needs memory of the host; the system refused it");
}

TEST(OutOfMemory, CoversSizesLargerThanAnyMemory) {
  const Result<int> refused = or_out_of_memory("table", []() -> Result<int> {
    std::vector<int> values;
    values.reserve(values.max_size() + 1);
    return 1;
  });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().fact, "the size exceeds any memory");
}

TEST(OutOfMemory, PassesResultsAndErrorsThrough) {
  EXPECT_EQ(*or_out_of_memory("", []() -> Result<int> { return 7; }), 7);
  const Status failed = or_out_of_memory("", []() -> Status {
    return Error{ErrorKind::kIo, "", "disk", "", ""};
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().place, "disk");
}

}  // namespace
}  // namespace moracle::out_of_memory_test
