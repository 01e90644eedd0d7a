// Rate at which all SMs fill their shared memory from L2, by bulk copies of `chunk`
// bytes or by gathered 16-byte copies, without products.
//
//   nvcc -std=c++20 -O2 -gencode arch=compute_90a,code=sm_90a -Iinclude -Isrc bench/lab/l2_fill.cu
//   -cudart
//     static -o l2_fill
#include <cstdio>

#include "copy_bulk.cuh"

using namespace moracle::cuda;

// Each stage is 32 KB. Groups of `share` blocks read the same bytes.
template <bool kGather>
__global__ void __launch_bounds__(128, 1)
    fill_stages(const uint8_t* from, int chunk, int share, int stages, int64_t span, int rounds,
                unsigned long long* out) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ uint64_t full[8];
  constexpr int kStage = 32768;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < stages) mbarrier_init(shared_address(&full[thread]), kGather ? 128 : 1);
  mbarrier_init_fence();
  __syncthreads();
  const uint8_t* const own = from + blockIdx.x / share * span;
  unsigned long long begin = clock64(), begin_ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
  const auto issue = [&](int i) {
    const uint32_t to = shared_address(memory) + i % stages * kStage;
    const uint32_t barrier = shared_address(&full[i % stages]);
    const uint8_t* const at = own + static_cast<int64_t>(i) * kStage % span;
    if constexpr (kGather) {
      for (int r = 0; r < 16; ++r)
        cp_async_16(to + r * 2048 + thread * 16, at + r * 2048 + thread * 16, true);
      mbarrier_arrive_after_cp_async(barrier);
    } else if (thread < 32) {
      if (thread == 0) mbarrier_arrive_expect_tx(barrier, kStage);
      __syncwarp();
      for (int c = thread; c < kStage / chunk; c += 32)
        tma_load_bytes(to + c * chunk, at + c * chunk, chunk, barrier);
    }
  };
  if (kGather || thread < 32) {
    for (int i = 0; i < stages; ++i) issue(i);
    for (int i = 0; i < rounds; ++i) {
      mbarrier_wait(shared_address(&full[i % stages]), i / stages % 2);
      if (i + stages < rounds) issue(i + stages);
    }
  }
  unsigned long long end_ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns));
  if (blockIdx.x == 0 && thread == 0) out[0] = clock64() - begin, out[1] = end_ns - begin_ns;
}

int main() {
  uint8_t* data;
  unsigned long long *out, host[2];
  cudaMalloc(&data, 1 << 30);
  cudaMemset(data, 1, 1 << 30);
  cudaMalloc(&out, 16);
  cudaFuncSetAttribute(fill_stages<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, 196608);
  cudaFuncSetAttribute(fill_stages<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, 196608);
  const auto run = [&](bool gather, int chunk, int share, int stages, int64_t span) {
    const int rounds = 4000;
    for (int i = 0; i < 2; ++i) {
      if (gather)
        fill_stages<true><<<132, 128, 196608>>>(data, chunk, share, stages, span, rounds, out);
      else
        fill_stages<false><<<132, 128, 196608>>>(data, chunk, share, stages, span, rounds, out);
    }
    const cudaError_t code = cudaMemcpy(host, out, 16, cudaMemcpyDeviceToHost);
    const double bytes = 32768.0 * rounds;
    std::printf(
        "%s chunk %5d share %3d stages %d span %4ld KB: %.1f B/clk/SM, %.2f TB/s, %.2f GHz %s\n",
        gather ? "gather" : "bulk  ", chunk, share, stages, static_cast<long>(span >> 10),
        bytes / host[0], bytes * 132 / host[1] / 1000, 1.0 * host[0] / host[1],
        cudaGetErrorString(code));
  };
  for (int chunk : {512, 1024, 2048, 4096, 8192, 32768}) run(false, chunk, 4, 6, 1 << 18);
  for (int stages : {1, 2, 3, 4}) run(false, 2048, 4, stages, 1 << 18);
  for (int share : {1, 132}) run(false, 2048, share, 6, 1 << 18);
  run(false, 2048, 4, 6, 1 << 24);  // from HBM, shared
  run(false, 2048, 1, 6, 1 << 22);  // from HBM
  for (int stages : {2, 4, 6}) run(true, 16, 4, stages, 1 << 18);
  return 0;
}
