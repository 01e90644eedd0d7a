// Measures how fast a kernel moves large matrices between two GPUs: rows to the other one (a
// gather), and the sum of two halves (reduce-scatter), both GPUs at once. One process; no signals,
// so a lower bound of time.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

namespace {

__global__ void copy(const uint4* from, uint4* to, long count) {
  constexpr int kEach = 4;
  const long step = static_cast<long>(gridDim.x) * blockDim.x;
  for (long i = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step * kEach) {
    uint4 values[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (i + j * step < count) values[j] = from[i + j * step];
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (i + j * step < count) to[i + j * step] = values[j];
  }
}

__device__ unsigned sum_pair(unsigned a, unsigned b) {
  const float2 x = __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(a));
  const float2 y = __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(b));
  const __nv_bfloat162 sum = __float22bfloat162_rn({x.x + y.x, x.y + y.y});
  return reinterpret_cast<const unsigned&>(sum);
}

__global__ void add(const uint4* mine, const uint4* other, uint4* to, long count) {
  constexpr int kEach = 4;
  const long step = static_cast<long>(gridDim.x) * blockDim.x;
  for (long i = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step * kEach) {
    uint4 a[kEach], b[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (i + j * step < count) b[j] = other[i + j * step], a[j] = mine[i + j * step];
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (i + j * step < count)
        to[i + j * step] = {sum_pair(a[j].x, b[j].x), sum_pair(a[j].y, b[j].y),
                            sum_pair(a[j].z, b[j].z), sum_pair(a[j].w, b[j].w)};
  }
}

}  // namespace

int main() {
  constexpr long kMost = 32l << 20;
  uint4 *here[2], *there[2], *sums[2];
  cudaStream_t stream[2];
  cudaEvent_t begin[2], end[2];
  for (int g = 0; g < 2; ++g) {
    cudaSetDevice(g);
    cudaDeviceEnablePeerAccess(1 - g, 0);
    cudaMalloc(&here[g], kMost), cudaMalloc(&there[g], kMost), cudaMalloc(&sums[g], kMost);
    cudaMemset(here[g], 0, kMost), cudaMemset(there[g], 0, kMost);
    cudaStreamCreate(&stream[g]);
    cudaEventCreate(&begin[g]), cudaEventCreate(&end[g]);
  }
  constexpr int kCalls = 50;
  for (const long bytes : {4l << 20, 8l << 20, 32l << 20}) {
    for (const int blocks : {16, 32, 66, 132, 264}) {
      for (const char* what : {"push", "pull", "add_pull"}) {
        for (int round = 0; round < 2; ++round) {
          for (int g = 0; g < 2; ++g) {
            cudaSetDevice(g);
            cudaDeviceSynchronize();
          }
          for (int i = 0; i < kCalls; ++i) {
            for (int g = 0; g < 2; ++g) {
              cudaSetDevice(g);
              if (i == 0) cudaEventRecord(begin[g], stream[g]);
              const long count = bytes / 16;
              if (what[0] == 'a')
                add<<<blocks, 512, 0, stream[g]>>>(here[g], there[1 - g], sums[g], count);
              else if (what[2] == 's')
                copy<<<blocks, 512, 0, stream[g]>>>(here[g], there[1 - g], count);
              else
                copy<<<blocks, 512, 0, stream[g]>>>(there[1 - g], here[g], count);
              if (i + 1 == kCalls) cudaEventRecord(end[g], stream[g]);
            }
          }
        }
        for (int g = 0; g < 2; ++g) {
          cudaSetDevice(g);
          cudaDeviceSynchronize();
        }
        float ms = 0;
        cudaEventElapsedTime(&ms, begin[0], end[0]);
        const double us = ms * 1000 / kCalls;
        std::printf("%s %ld MiB, %d blocks: %.1f us, %.0f GB/s %s\n", what, bytes >> 20, blocks, us,
                    bytes / us / 1000, cudaGetErrorString(cudaGetLastError()));
      }
    }
  }
  return 0;
}
