// Cycles of wgmma m64nNk16 in bf16 with the first operand in registers, by width.
//
//   nvcc -std=c++20 -O2 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -Iinclude
//     -Isrc bench/lab/wgmma_rate.cu -cudart static -o wgmma_rate
#include <cstdio>

#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

using namespace moracle::cuda;

namespace {

constexpr int kRounds = 64, kEach = 8;

template <int kN>
__global__ void multiply(long long* cycles, float* sums) {
  __shared__ __align__(1024) uint8_t x[kN * 128];
  float sum[kN / 2] = {};
  const uint32_t weights[4] = {threadIdx.x, 1, 2, 3};
  const uint64_t from = swizzled_descriptor(shared_address(x));
  __syncthreads();
  const long long begin = clock64();
  for (int i = 0; i < kRounds; ++i) {
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      wgmma<WgmmaTypes::kBf16, kN>(sum, weights, from + 2 * (j % 4), true);
    wgmma_commit();
    wgmma_wait<0>();
  }
  const long long end = clock64();
  for (const float one : sum) sums[threadIdx.x] += one;
  if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = end - begin;
}

template <int kN>
void measure(int warpgroups) {
  long long* cycles = nullptr;
  float* sums = nullptr;
  cudaMallocManaged(&cycles, sizeof *cycles);
  cudaMalloc(&sums, 4096);
  for (int i = 0; i < 2; ++i) multiply<kN><<<132, 128 * warpgroups>>>(cycles, sums);
  if (cudaDeviceSynchronize() != cudaSuccess) std::printf("failed\n");
  std::printf("m64n%dk16, %d warpgroups: %.1f cycles\n", kN, warpgroups,
              static_cast<double>(*cycles) / (kRounds * kEach * warpgroups));
  cudaFree(cycles), cudaFree(sums);
}

}  // namespace

int main() {
  for (const int warpgroups : {1, 2, 4}) {
    measure<16>(warpgroups);
    measure<32>(warpgroups);
    measure<64>(warpgroups);
  }
  return 0;
}
