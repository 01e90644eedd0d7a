// Kernels of cuda-peer with several ranks on one GPU, each on its own stream: more ranks than the
// machine has GPUs.
#if defined(MORACLE_WITH_NCCL)
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/scalar.h"
#include "kernels/ops.h"
#include "moracle/moracle.h"
#include "parallel/cuda/peer_chunks.h"
#include "support/must.h"

namespace moracle::cuda_peer_kernels_test {
namespace {

using testing::must;
using Bits = std::vector<uint16_t>;

class CudaPeers : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "needs a GPU";
    device_ = must(open_device("cuda:0", 1));
    queue_.index = 0;
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    if (properties.multiProcessorCount < 80)
      GTEST_SKIP() << "the kernels of all ranks must run at once";
    queue_.capability = properties.major * 10 + properties.minor;
    stop_ = must(device_->allocate_host(sizeof(int)));
    *stop_.as<int>() = 0;
    for (int r = 0; r < ranks(); ++r) {
      memory_.push_back(must(device_->allocate(low_latency_bytes() + block_bytes())));
      rounds_.push_back(must(device_->allocate(
          (cuda::PeerLowLatency::kBlocks + cuda::PeerChunks::kBlocks) * sizeof(uint32_t))));
      cudaStream_t stream = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      streams_.push_back(stream);
    }
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  int ranks() const { return GetParam(); }
  size_t low_latency_bytes() const { return cuda::PeerLowLatency::memory_bytes(ranks()); }
  size_t block_bytes() const { return cuda::PeerChunks::memory_bytes(ranks()); }
  Stream stream(int rank) const { return Stream{streams_[rank]}; }
  cuda::PeerLowLatency low_latency(int rank) {
    cuda::PeerLowLatency low_latency{
        {}, rank, ranks(), rounds_[rank].as<uint32_t>(), stop_.as<int>()};
    for (int r = 0; r < ranks(); ++r) low_latency.memory[r] = memory_[r].as<std::byte>();
    return low_latency;
  }
  cuda::PeerChunks chunks(int rank) {
    cuda::PeerChunks chunks{{},
                            rank,
                            ranks(),
                            rounds_[rank].as<uint32_t>() + cuda::PeerLowLatency::kBlocks,
                            stop_.as<int>()};
    for (int r = 0; r < ranks(); ++r)
      chunks.memory[r] = memory_[r].as<std::byte>() + low_latency_bytes();
    return chunks;
  }
  template <class T>
  Buffer put(const std::vector<T>& values) {
    Buffer buffer = must(device_->allocate(values.size() * sizeof(T)));
    must(device_->upload(buffer.data(), values.data(), values.size() * sizeof(T)));
    must(device_->synchronize());
    return buffer;
  }
  Bits get(const Buffer& buffer) {
    Bits values(buffer.bytes() / 2);
    must(device_->download(values.data(), buffer.data(), buffer.bytes()));
    must(device_->synchronize());
    return values;
  }
  Bits random(int64_t count) {
    Bits values(count);
    for (uint16_t& value : values)
      value = float_to_bf16(0.37f * static_cast<float>(static_cast<int>(engine_() % 4001) - 2000));
    return values;
  }
  void finish() {
    for (cudaStream_t stream : streams_) ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }

  std::shared_ptr<Device> device_;
  cuda::Queue queue_;
  Buffer stop_;
  std::vector<Buffer> memory_, rounds_;
  std::vector<cudaStream_t> streams_;
  std::mt19937 engine_{1};
};

// All thread blocks of all ranks must run at once, so a rank has at most 17 of them. Repetition
// uses every ring slot.
constexpr int64_t kCounts[] = {8, 8'192, 8'200, 131'080};
constexpr int kTimes = 8;

Bits sums_of(const std::vector<Bits>& rows, int64_t first, int64_t count) {
  Bits sums(count);
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const Bits& row : rows) sum += bf16_to_float(row[first + i]);
    sums[i] = float_to_bf16(sum);
  }
  return sums;
}

TEST_P(CudaPeers, BothProtocolsGatherTheValuesOfAllRanks) {
  for (const int64_t count : kCounts) {
    for (int again = 0; again < kTimes; ++again) {
      std::vector<Buffer> mine, all, few;
      Bits expected;
      for (int r = 0; r < ranks(); ++r) {
        const Bits values = random(count);
        expected.insert(expected.end(), values.begin(), values.end());
        mine.push_back(put(values));
        all.push_back(must(device_->allocate(count * 2 * ranks())));
        few.push_back(must(device_->allocate(16 * ranks())));
      }
      for (int r = 0; r < ranks(); ++r) {
        const auto part = [&](int64_t bytes, const Buffer& to) {
          return cuda::PeerGathered{mine[r].as<std::byte>(), bytes, to.as<std::byte>()};
        };
        const cuda::PeerGathered two[] = {part(count * 2, all[r]), part(16, few[r])};
        if (again % 3 == 2)
          must(cuda::peer_gather(queue_, low_latency(r), two, stream(r)));
        else
          must(cuda::peer_gather(queue_, chunks(r), two, stream(r)));
      }
      finish();
      for (int r = 0; r < ranks(); ++r) {
        ASSERT_EQ(get(all[r]), expected) << count << " values, rank " << r;
        const Bits first = get(few[r]);
        for (int from = 0; from < ranks(); ++from)
          for (int64_t i = 0; i < 8; ++i)
            ASSERT_EQ(first[from * 8 + i], expected[from * count + i]) << "rank " << r;
      }
    }
  }
}

TEST_P(CudaPeers, SumsInRankOrderAndRoundsOnce) {
  for (const int64_t count : kCounts) {
    for (int again = 0; again < kTimes; ++again) {
      std::vector<Bits> rows;
      std::vector<Buffer> all, mine;
      for (int r = 0; r < ranks(); ++r) {
        rows.push_back(random(count * ranks()));
        all.push_back(put(rows.back()));
        mine.push_back(must(device_->allocate(count * 2)));
      }
      for (int r = 0; r < ranks(); ++r) {
        const Matrix from{all[r].data(), DType::kBF16, ranks(), count, count};
        const Matrix to{mine[r].data(), DType::kBF16, 1, count, count};
        if (again % 3 == 2)
          must(cuda::peer_sum_rows(queue_, low_latency(r), from, to, stream(r)));
        else
          must(cuda::peer_sum_rows(queue_, chunks(r), from, to, stream(r)));
      }
      finish();
      for (int r = 0; r < ranks(); ++r)
        ASSERT_EQ(get(mine[r]), sums_of(rows, r * count, count)) << count << " values, rank " << r;
    }
  }
}

TEST_P(CudaPeers, AllReduceGivesTheSameBitsOnEveryRank) {
  for (const int64_t at_least : kCounts) {
    const int64_t multiple = int64_t{8} * ranks();  // ranges of whole vectors
    const int64_t count = (at_least + multiple - 1) / multiple * multiple;
    for (int again = 0; again < 2 * kTimes; ++again) {
      std::vector<Bits> rows;
      std::vector<Buffer> x;
      for (int r = 0; r < ranks(); ++r) {
        rows.push_back(random(count));
        x.push_back(put(rows.back()));
      }
      for (int r = 0; r < ranks(); ++r) {
        const Matrix here{x[r].data(), DType::kBF16, 1, count, count};
        if (again % 2 == 0)
          must(cuda::peer_sum(queue_, chunks(r), here, stream(r)));
        else
          must(cuda::peer_sum_in_ranges(queue_, chunks(r), here, stream(r)));
      }
      finish();
      for (int r = 0; r < ranks(); ++r)
        ASSERT_EQ(get(x[r]), sums_of(rows, 0, count)) << count << " values, rank " << r;
    }
  }
}

TEST_P(CudaPeers, CombineScatterHasTheBitsOfCombineThenReduceScatter) {
  struct Case {
    int64_t tokens, cols, top_k;  // tokens of a rank
  };
  for (const auto& [tokens, cols, top_k] :
       {Case{1, 8, 1}, {5, 2048, 8}, {40, 136, 3}, {17, 1024, 5}}) {
    const int64_t all = tokens * ranks(), slots = all * top_k, rows = slots + 3;
    std::vector<Buffer> values, slot_rows, weights, sums, apart, added, order_rows, order_weights;
    for (int r = 0; r < ranks(); ++r) {
      values.push_back(put(random(rows * cols)));
      std::vector<int32_t> places(rows);
      std::iota(places.begin(), places.end(), 0);
      std::shuffle(places.begin(), places.end(), engine_);
      places.resize(slots);
      // Some slots have no row, and some tokens none at all.
      for (int64_t s = 0; s < slots; ++s)
        if (engine_() % 3 == 0 || s / top_k % 7 == 2) places[s] = -1;
      slot_rows.push_back(put(places));
      std::vector<float> factors(slots);
      for (float& factor : factors) factor = 0.001f * static_cast<float>(engine_() % 1000);
      weights.push_back(put(factors));
      sums.push_back(must(device_->allocate(all * cols * 2)));
      for (auto* const to : {&apart, &added})
        to->push_back(must(device_->allocate(tokens * cols * 2)));
      order_rows.push_back(must(device_->allocate(slots * 4)));
      order_weights.push_back(must(device_->allocate(slots * 4)));
    }
    const auto matrix = [cols = cols](const Buffer& of, int64_t count) {
      return Matrix{of.data(), DType::kBF16, count, cols, cols};
    };
    for (int r = 0; r < ranks(); ++r) {
      const Matrix from = matrix(values[r], rows), sum = matrix(sums[r], all);
      must(kernel_device(*device_).ops().combine(from, slot_rows[r].as<int32_t>(),
                                                 weights[r].as<float>(), top_k, sum, stream(r)));
      must(cuda::peer_sum_rows(queue_, chunks(r), sum, matrix(apart[r], tokens), stream(r)));
    }
    finish();
    for (int r = 0; r < ranks(); ++r) {
      const ExpertRows given{matrix(values[r], rows), slot_rows[r].as<int32_t>(),
                             weights[r].as<float>(), all, top_k};
      must(cuda::peer_combine_scatter(queue_, chunks(r), given,
                                      {order_rows[r].as<int32_t>(), order_weights[r].as<float>()},
                                      matrix(added[r], tokens), stream(r)));
    }
    finish();
    for (int r = 0; r < ranks(); ++r)
      ASSERT_EQ(get(added[r]), get(apart[r])) << tokens << " tokens of " << cols << ", rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaPeers, ::testing::Values(2, 3, 5));

}  // namespace
}  // namespace moracle::cuda_peer_kernels_test
#endif
