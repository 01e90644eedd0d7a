// The exchange on a communicator of the engine. The ranks are threads, as many as there are GPUs,
// up to two.
#if defined(MORACLE_WITH_NCCL)
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/scalar.h"
#include "moracle/parallel.h"
#include "parallel/cuda/nccl_api.h"
#include "ranks_of_threads.h"
#include "support/must.h"

namespace moracle::cuda_connect_nccl_test {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::on_ranks;

class CudaConnectNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!nccl::api()) GTEST_SKIP() << nccl::api().error().to_string();
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0)
      GTEST_SKIP() << "needs an NVIDIA GPU";
    ranks_ = std::min(gpus, 2);
    ASSERT_EQ(nccl::api()->ncclGetUniqueId(&id_), ncclSuccess);
  }
  // What an engine does on each rank.
  ncclComm_t communicator(int64_t rank) const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclComm_t comm = nullptr;
    cudaSetDevice(static_cast<int>(rank));
    if (nccl::api()->ncclCommInitRankConfig(&comm, ranks_, id_, static_cast<int>(rank), &config) !=
        ncclSuccess)
      throw std::runtime_error("ncclCommInitRankConfig failed");
    return comm;
  }
  int ranks_ = 0;
  ncclUniqueId id_{};
};

TEST_F(CudaConnectNccl, SumsOnTheEnginesCommunicatorAndLeavesIt) {
  std::vector<float> sums(ranks_);
  on_ranks(ranks_, [&](const std::shared_ptr<Group>& group) {
    const int64_t rank = group->rank();
    const auto device = must(open_device("cuda:" + std::to_string(rank), 1));
    const ncclComm_t comm = communicator(rank);
    for (int round = 0; round < 2; ++round) {  // the communicator outlives an exchange
      const auto exchange = must(connect_nccl(group, device, comm));
      EXPECT_EQ(exchange->name(), "nccl");
      const float mine = static_cast<float>(rank + 1);
      const Buffer x = must(device->allocate(sizeof mine));
      must(device->upload(x.data(), &mine, sizeof mine));
      must(exchange->all_reduce({x.data(), DType::kF32, 1, 1, 1}, {}));
      must(device->download(&sums[rank], x.data(), sizeof mine));
      must(device->synchronize());
    }
    EXPECT_EQ(nccl::api()->ncclCommDestroy(comm), ncclSuccess);
  });
  EXPECT_THAT(sums, ::testing::Each(ranks_ == 1 ? 1.0f : 3.0f));
}

TEST_F(CudaConnectNccl, RejectsACommunicatorOfOtherRanks) {
  if (ranks_ < 2) GTEST_SKIP() << "needs two GPUs";
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const auto device = must(open_device("cuda:" + std::to_string(group->rank()), 1));
    const ncclComm_t comm = communicator(group->rank());
    const auto alone = must(open_group({}));
    EXPECT_THAT(connect_nccl(alone, device, comm).error().to_string(),
                HasSubstr("communicator: needs rank 0 of 1 on cuda:"));
    EXPECT_EQ(nccl::api()->ncclCommDestroy(comm), ncclSuccess);
  });
}

}  // namespace
}  // namespace moracle::cuda_connect_nccl_test
#endif
