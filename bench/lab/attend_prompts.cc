// Times attention of a prompt's last 512 tokens on a CPU, Qwen3-30B-A3B's heads, with f32 and with
// bf16 products in turns, beside the rates of both instructions in the same seconds.
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/lab/attend_prompts.cc build/cpu/libmoracle.a … -o
//   attend_prompts
//   ./attend_prompts [threads] [rounds] [tokens …]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "moracle/device.h"
#include "oracle/rates/multiply_loops.h"

namespace {

using namespace moracle;

constexpr int64_t kHeads = 32, kKeyHeads = 4, kDim = 128, kStep = 512;

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<float> normal(int64_t count) {
  static std::mt19937 random{1};
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

void time_prompt(Device& device, int threads, int rounds, int64_t tokens, DType dtype) {
  Ops& ops = kernel_device(device).ops();
  const int64_t page = cache_page(device.platform()), step = std::min(tokens, kStep);
  const int64_t half = kKeyHeads * page * cached_bytes(dtype, kDim);
  AttentionShape shape{kHeads, kKeyHeads, kDim, kDim, 0.088f};
  shape.cache = {dtype, 0, half, kKeyHeads};
  Buffer memory = *device.allocate((tokens + page - 1) / page * 2 * half);
  std::vector<std::byte*> pages;
  for (int64_t i = 0; i * page < tokens; ++i)
    pages.push_back(memory.as<std::byte>() + i * 2 * half);
  const std::vector<int32_t> ids(step);
  BatchTable table;
  const std::vector<float> k = normal(step * kKeyHeads * kDim), v = normal(step * kKeyHeads * kDim);
  for (int64_t at = 0; at < tokens; at += step) {
    const SequenceTokens one{ids, at, pages};
    (void)table.fill({&one, 1}, page, device, {});
    (void)ops.append(Matrix::f32(const_cast<float*>(k.data()), step, kKeyHeads * kDim),
                     Matrix::f32(const_cast<float*>(v.data()), step, kKeyHeads * kDim),
                     table.batch(), shape.cache, {});
  }
  std::vector<float> q = normal(step * kHeads * kDim), out(q.size());
  double best[2] = {1e9, 1e9}, rates[2] = {};
  std::vector<double> all[2];
  for (int round = 0; round < rounds; ++round) {
    for (const int bf16 : {0, 1}) {
      shape.bf16_products = bf16 != 0;
      const double seconds = seconds_of([&] {
        (void)ops.attend(Matrix::f32(q.data(), step, kHeads * kDim), table.batch(), shape,
                         Matrix::f32(out.data(), step, kHeads * kDim), nullptr, {});
      });
      best[bf16] = std::min(best[bf16], seconds);
      all[bf16].push_back(seconds);
      constexpr int64_t kRounds = 20'000;
      const double multiplying = seconds_of(
          [&] { (bf16 != 0 ? cpu::multiply_bf16_avx512 : cpu::multiply_f32_avx512)(kRounds); });
      const double lanes = bf16 != 0 ? 32 : 16;
      rates[bf16] = std::max(rates[bf16], 2.0 * cpu::kMultiplies * lanes * kRounds / multiplying);
    }
  }
  const double seen = static_cast<double>(step) * static_cast<double>(tokens) -
                      static_cast<double>(step) * static_cast<double>(step - 1) / 2;
  const double ops_of = 4.0 * kHeads * kDim * seen;
  std::printf("%s, %ld tokens:", std::string(name(dtype)).c_str(), static_cast<long>(tokens));
  for (const int bf16 : {0, 1}) {
    std::sort(all[bf16].begin(), all[bf16].end());
    std::printf("  %s %.0f us (median %.0f), %.0f %% of %.0f GFLOP/s", bf16 ? "bf16" : "f32",
                best[bf16] * 1e6, all[bf16][all[bf16].size() / 2] * 1e6,
                100 * ops_of / best[bf16] / (rates[bf16] * threads), rates[bf16] * threads / 1e9);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1, rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const auto device = *open_device("cpu", threads);
  std::vector<int64_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atol(argv[i]));
  if (sizes.empty()) sizes = {512, 2048, 8192};
  for (const int64_t tokens : sizes)
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      time_prompt(*device, threads, rounds, tokens, dtype);
}
