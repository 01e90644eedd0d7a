// Rate at which all multiprocessors read weights from memory into shared memory: stages of 16
// panels that lie apart, as in layout mma16, or side by side.
//
//   nvcc -std=c++20 -O2 -gencode arch=compute_90a,code=sm_90a -Iinclude -Isrc
//     bench/lab/dram_fill.cu -cudart static -o dram_fill
#include <algorithm>
#include <cstdio>
#include <vector>

#include "copy_bulk.cuh"

using namespace moracle::cuda;

constexpr int kStage = 32768, kStages = 6;

// A tile is `pieces` runs of `run` bytes. A stage takes kStage / pieces bytes of each run. `apart`
// tells whether the runs or the stages of a tile are contiguous.
__global__ void __launch_bounds__(128, 1)
    read_tiles(const uint8_t* from, int tiles, int pieces, int64_t run, bool apart) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ uint64_t full[kStages];
  const int thread = static_cast<int>(threadIdx.x), piece = kStage / pieces;
  if (thread < kStages) init_barrier(shared_address(&full[thread]), 1);
  fence_barrier_init();
  __syncthreads();
  const auto stages = static_cast<int>(run / piece);
  const int own = (tiles - static_cast<int>(blockIdx.x) + gridDim.x - 1) / gridDim.x * stages;
  const auto issue = [&](int i) {
    const int64_t tile = blockIdx.x + int64_t{i / stages} * gridDim.x;
    const int stage = i % stages;
    const uint32_t to = shared_address(memory) + i % kStages * kStage;
    const uint32_t barrier = shared_address(&full[i % kStages]);
    const uint8_t* const at = from + tile * pieces * run;
    if (thread == 0) arrive_expecting(barrier, kStage);
    __syncwarp();
    if (thread < pieces)
      copy_bulk(to + thread * piece,
                apart ? at + thread * run + int64_t{stage} * piece
                      : at + int64_t{stage} * kStage + thread * piece,
                piece, barrier);
  };
  if (thread >= 32) return;
  for (int i = 0; i < kStages && i < own; ++i) issue(i);
  for (int i = 0; i < own; ++i) {
    wait_for(shared_address(&full[i % kStages]), i / kStages % 2);
    if (i + kStages < own) issue(i + kStages);
  }
}

int main() {
  uint8_t* data;
  const int64_t bytes = int64_t{4} << 30;
  cudaMalloc(&data, bytes);
  cudaMemset(data, 1, bytes);
  cudaFuncSetAttribute(read_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, kStage * kStages);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  struct Case {
    const char* name;
    int tiles, pieces;
    int64_t run;
  };
  const Case cases[] = {{"mixtral w13 8 bits", 896, 16, 4096 * 16},
                        {"mixtral w2 8 bits", 128, 16, 14336 * 16},
                        {"qwen3 w13 8 bits, 51 experts", 306, 16, 2048 * 16},
                        {"qwen3 w2 8 bits, 51 experts", 408, 16, 768 * 16},
                        {"many", 1320, 16, 4096 * 16}};
  for (const Case& c : cases) {
    for (const bool apart : {true, false}) {
      std::vector<float> times;
      const int64_t each = int64_t{c.tiles} * c.pieces * c.run;
      for (int i = 0; i < 12; ++i) {
        const uint8_t* const from = data + (i % std::max<int64_t>(bytes / each, 1)) * each;
        cudaEventRecord(begin);
        read_tiles<<<132, 128, kStage * kStages>>>(from, c.tiles, c.pieces, c.run, apart);
        cudaEventRecord(end);
        cudaEventSynchronize(end);
        float ms = 0;
        cudaEventElapsedTime(&ms, begin, end);
        times.push_back(ms * 1000);
      }
      std::sort(times.begin(), times.end());
      std::printf("%-30s %s: %.1f us, %.0f GB/s\n", c.name, apart ? "apart       " : "side by side",
                  times[6], static_cast<double>(each) / times[6] / 1e3);
    }
  }
  std::printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
