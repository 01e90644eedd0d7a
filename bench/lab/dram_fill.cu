// Rate at which all SMs read weights from memory into shared memory: stages of 16
// panels that lie apart, as in layout mma16, or side by side, in pieces of several sizes, and with
// runs of each panel fetched into L2 ahead of the stages.
//
//   nvcc -std=c++20 -O2 -gencode arch=compute_90a,code=sm_90a -Iinclude -Isrc
//     bench/lab/dram_fill.cu -cudart static -o dram_fill
#include <algorithm>
#include <cstdio>
#include <vector>

#include "copy_bulk.cuh"

using namespace moracle::cuda;

struct Reading {
  int stage, stages;  // bytes of a stage, and stages of the ring
  int pieces;         // runs of a tile; a stage takes stage / pieces bytes of each
  int64_t run;        // bytes of a run
  bool apart;         // runs of a tile are contiguous; otherwise its stages are
  int ahead;          // bytes of a run that are fetched into L2 at once; 0: none
};

__global__ void __launch_bounds__(128, 1) read_tiles(const uint8_t* from, int tiles, Reading r) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ uint64_t full[16];
  const int thread = static_cast<int>(threadIdx.x), piece = r.stage / r.pieces;
  if (thread < r.stages) mbarrier_init(shared_address(&full[thread]), 1);
  mbarrier_init_fence();
  __syncthreads();
  const auto stages = static_cast<int>(r.run / piece);
  const int own = (tiles - static_cast<int>(blockIdx.x) + gridDim.x - 1) / gridDim.x * stages;
  const auto issue = [&](int i) {
    const int64_t tile = blockIdx.x + int64_t{i / stages} * gridDim.x;
    const int stage = i % stages;
    const uint32_t to = shared_address(memory) + i % r.stages * r.stage;
    const uint32_t barrier = shared_address(&full[i % r.stages]);
    const uint8_t* const at = from + tile * r.pieces * r.run;
    const int64_t begin = int64_t{stage} * piece;
    if (r.ahead > 0 && begin % r.ahead == 0 && thread < r.pieces) {
      const int64_t first = begin == 0 ? 0 : begin + r.ahead;
      const int64_t end = min(begin + 2 * r.ahead, r.run);
      if (first < end) prefetch_bulk(at + thread * r.run + first, static_cast<int>(end - first));
    }
    if (thread == 0) mbarrier_arrive_expect_tx(barrier, r.stage);
    __syncwarp();
    if (thread < r.pieces)
      tma_load_bytes(
          to + thread * piece,
          r.apart ? at + thread * r.run + begin : at + int64_t{stage} * r.stage + thread * piece,
          piece, barrier);
  };
  if (thread >= 32) return;
  for (int i = 0; i < r.stages && i < own; ++i) issue(i);
  for (int i = 0; i < own; ++i) {
    mbarrier_wait(shared_address(&full[i % r.stages]), i / r.stages % 2);
    if (i + r.stages < own) issue(i + r.stages);
  }
}

int main() {
  uint8_t* data;
  const int64_t bytes = int64_t{4} << 30;
  cudaMalloc(&data, bytes);
  cudaMemset(data, 1, bytes);
  cudaFuncSetAttribute(read_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, 196608);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  struct Matrix {
    const char* name;
    int tiles;  // of 16 runs
    int64_t run;
  };
  const Matrix matrices[] = {{"mixtral w13 8 bits", 896, 4096 * 16},
                             {"mixtral w2 8 bits", 128, 14336 * 16},
                             {"mixtral w13 16 bits", 896, 4096 * 32},
                             {"qwen3 w13 16 bits, 112 experts", 672, 2048 * 32},
                             {"qwen3 w2 16 bits, 112 experts", 896, 768 * 32},
                             {"many", 1320, 4096 * 16}};
  struct Way {
    const char* name;
    int stage, stages, pieces;
    bool apart;
    int ahead;
  };
  const Way ways[] = {
      {"apart, 2 KB", 32768, 6, 16, true, 0},       {"apart, 2 KB", 32768, 5, 16, true, 0},
      {"apart, 2 KB", 32768, 4, 16, true, 0},       {"apart, 2 KB", 32768, 3, 16, true, 0},
      {"apart, 2 KB", 32768, 2, 16, true, 0},       {"apart, 4 KB", 65536, 3, 16, true, 0},
      {"apart, 4 KB", 65536, 2, 16, true, 0},       {"apart, 1 KB", 16384, 12, 16, true, 0},
      {"apart, 1 KB", 16384, 6, 16, true, 0},       {"apart, 1 KB", 16384, 4, 16, true, 0},
      {"apart, 1 KB", 16384, 3, 16, true, 0},       {"side by side", 32768, 6, 16, false, 0},
      {"side by side", 32768, 3, 16, false, 0},     {"side by side", 32768, 2, 16, false, 0},
      {"8 panels, 4 KB", 32768, 4, 8, true, 0},     {"8 panels, 4 KB", 32768, 2, 8, true, 0},
      {"8 panels, 2 KB", 16384, 6, 8, true, 0},     {"8 panels, 2 KB", 16384, 4, 8, true, 0},
      {"4 panels, 8 KB", 32768, 3, 4, true, 0},     {"4 panels, 8 KB", 32768, 2, 4, true, 0},
      {"L2 ahead, 2 KB", 32768, 3, 16, true, 2048}, {"L2 ahead, 8 KB", 32768, 6, 16, true, 8192}};
  for (const Matrix& m : matrices) {
    for (const Way& way : ways) {
      const Reading reading{way.stage, way.stages, way.pieces, m.run, way.apart, way.ahead};
      const int tiles = m.tiles * 16 / way.pieces;
      const int64_t each = int64_t{m.tiles} * 16 * m.run;
      if (m.run % (way.stage / way.pieces) != 0) continue;
      std::vector<float> times;
      for (int i = 0; i < 12; ++i) {
        const uint8_t* const from = data + (i % std::max<int64_t>(bytes / each, 1)) * each;
        cudaEventRecord(begin);
        read_tiles<<<132, 128, way.stage * way.stages>>>(from, tiles, reading);
        cudaEventRecord(end);
        cudaEventSynchronize(end);
        float ms = 0;
        cudaEventElapsedTime(&ms, begin, end);
        times.push_back(ms * 1000);
      }
      std::sort(times.begin(), times.end());
      std::printf("%-31s %-15s %3d KB on the way: %.1f us, %.0f GB/s\n", m.name, way.name,
                  way.stage * way.stages >> 10, times[6],
                  static_cast<double>(each) / times[6] / 1e3);
    }
  }
  std::printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
