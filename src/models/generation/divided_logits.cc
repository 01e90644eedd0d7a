#include "models/generation/divided_logits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/kernel_device.h"

namespace moracle {
namespace {

// One of the largest logits of a rank.
struct Candidate {
  int32_t id;
  float logit;
};

// The order of Ops::find_top_k.
bool comes_first(const Candidate& a, const Candidate& b) {
  if (std::isnan(a.logit) != std::isnan(b.logit)) return std::isnan(a.logit);
  if (std::isnan(a.logit) || a.logit == b.logit) return a.id < b.id;
  return a.logit > b.logit;
}

// Every rank's shard has the size of the largest one, as a gather needs it.
int64_t values_of_shard(const Model::State& m, int64_t count) {
  return count * m.output_shares.most_rows();
}

// Merges the candidates of all ranks: `shards` has 2 * count * k values for each rank, first ids
// within the rank's rows, then logits.
void merge(const std::byte* shards, int64_t count, int64_t k, Model::State& m) {
  const OutputShares& shares = m.output_shares;
  const auto value = [&](int64_t rank, int64_t at) {
    return shards + (rank * 2 * count * k + at) * static_cast<int64_t>(sizeof(float));
  };
  m.largest_ids.clear();
  m.largest_logits.clear();
  std::vector<Candidate> all;
  for (int64_t row = 0; row < count; ++row) {
    all.clear();
    for (int64_t r = 0; r < shares.size; ++r) {
      const int64_t found = std::min(k, shares.rows(r));
      for (int64_t i = row * found; i < (row + 1) * found; ++i) {
        Candidate& one = all.emplace_back();
        std::memcpy(&one.id, value(r, i), sizeof one.id);
        std::memcpy(&one.logit, value(r, count * k + i), sizeof one.logit);
        one.id += static_cast<int32_t>(shares.first(r));
      }
    }
    std::partial_sort(all.begin(), all.begin() + k, all.end(), comes_first);
    for (int64_t i = 0; i < k; ++i) {
      m.largest_ids.push_back(all[i].id);
      m.largest_logits.push_back(all[i].logit);
    }
  }
}

}  // namespace

Matrix own_logits(const Model::State& m, int64_t count) {
  const OutputShares& shares = m.output_shares;
  auto* const shards = static_cast<float*>(m.activations.logits.data);
  const int64_t cols = shares.rows(shares.rank);
  return {shards + shares.rank * values_of_shard(m, count), DType::kF32, count, cols, cols};
}

Result<std::span<const float>> gather_logits(Model::State& m, int64_t count) {
  const OutputShares& shares = m.output_shares;
  Device& device = m.workspace->device();
  auto* const shards = static_cast<float*>(m.activations.logits.data);
  const int64_t shard_values = values_of_shard(m, count), vocab = shares.num_rows;
  MORACLE_CHECK(m.exchange->all_gather(shards + shares.rank * shard_values,
                                       shard_values * sizeof(float), shards, {}));
  const auto bytes = static_cast<size_t>(count * vocab) * sizeof(float);
  if (m.host_logits.bytes() < bytes) {
    m.host_logits = Buffer();
    MORACLE_TRY(m.host_logits, device.allocate_host(bytes));
  }
  auto* const to = m.host_logits.as<float>();
  // Copies the shares of each token's logits side by side, in host memory.
  const auto copy = [&](int64_t row, int64_t r, const auto& how) {
    return how(to + row * vocab + shares.first(r), shards + r * shard_values + row * shares.rows(r),
               static_cast<size_t>(shares.rows(r)) * sizeof(float));
  };
  if (device.host_visible()) {
    kernel_device(device).host_threads().split(
        count * shares.size, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            copy(i / shares.size, i % shares.size,
                 [](auto* a, auto* b, size_t n) { std::memcpy(a, b, n); });
        });
  } else {
    for (int64_t i = 0; i < count * shares.size; ++i) {
      MORACLE_CHECK(copy(i / shares.size, i % shares.size,
                         [&](auto* a, auto* b, size_t n) { return device.download(a, b, n); }));
    }
    MORACLE_CHECK(device.synchronize());
  }
  return std::span<const float>(to, static_cast<size_t>(count * vocab));
}

Result<Model::TopKLogits> gather_top_k(Model::State& m, int64_t count, int64_t k) {
  const OutputShares& shares = m.output_shares;
  Device& device = m.workspace->device();
  if (k < 1 || k > std::min(Model::kMaxTopK, shares.num_rows)) {
    return Error{ErrorKind::kInvalidArgument, "", "top-k logits",
                 str("1 to ", std::min(Model::kMaxTopK, shares.num_rows)), str("k is ", k)};
  }
  int32_t* const shards = m.activations.largest;
  int32_t* const own = shards + shares.rank * 2 * count * k;
  MORACLE_CHECK(or_out_of_memory("largest logits", [&] {
    return kernel_device(device).ops().find_top_k(
        own_logits(m, count), std::min(k, shares.rows(shares.rank)), own,
        reinterpret_cast<float*>(own + count * k), m.activations.top_k_scratch, Stream());
  }));
  const auto bytes = static_cast<size_t>(2 * count * k) * sizeof(float);
  MORACLE_CHECK(m.exchange->all_gather(own, bytes, shards, {}));
  const auto* host = reinterpret_cast<const std::byte*>(shards);
  if (!device.host_visible()) {
    if (m.host_logits.bytes() < bytes * shares.size) {
      m.host_logits = Buffer();
      MORACLE_TRY(m.host_logits, device.allocate_host(bytes * shares.size));
    }
    MORACLE_CHECK(device.download(m.host_logits.data(), shards, bytes * shares.size));
    host = m.host_logits.as<std::byte>();
  }
  MORACLE_CHECK(device.synchronize());
  merge(host, count, k, m);
  return Model::TopKLogits{m.largest_ids, m.largest_logits};
}

}  // namespace moracle
