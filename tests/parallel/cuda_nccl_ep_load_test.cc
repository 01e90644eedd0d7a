// Why nccl_ep is not loaded. Needs no GPU.
#if defined(MORACLE_WITH_NCCL_EP)
#include "parallel/cuda/nccl_ep/nccl_ep_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moracle/parallel.h"

namespace moracle::nccl_ep_load_test {
namespace {

using ::testing::HasSubstr;

TEST(NcclEpLoad, OlderNcclIsRefusedWithBothVersions) {
  EXPECT_EQ(nccl::ep_lacks(22809, "/nowhere/libnccl_ep.so"),
            "NCCL 2.28.9 is loaded, and nccl_ep needs 2.30.7");
}
TEST(NcclEpLoad, MissingLibraryIsNamed) {
  EXPECT_THAT(nccl::ep_lacks(23007, "/nowhere/libnccl_ep.so"),
              HasSubstr("/nowhere/libnccl_ep.so: cannot open shared object file"));
}
TEST(NcclEpLoad, LibraryWithoutItsFunctionsIsNamed) {
  EXPECT_EQ(nccl::ep_lacks(23007, "libc.so.6"), "libc.so.6 has no ncclEpCombine");
}

// A machine without NCCL, or with another version, does not serve the row and says why.
TEST(NcclEpLoad, RowSaysWhatTheMachineLacks) {
  const ExchangeSelection selection = select_exchange({Platform::kCuda, 2, "nccl-ep"});
  for (const ExchangeVerdict& verdict : selection.considered) {
    if (verdict.row->name != "nccl-ep") continue;
    EXPECT_EQ(selection.chosen != nullptr, verdict.reasons.empty());
    for (const Reason& reason : verdict.reasons) EXPECT_FALSE(reason.have.empty());
  }
}

}  // namespace
}  // namespace moracle::nccl_ep_load_test
#endif
