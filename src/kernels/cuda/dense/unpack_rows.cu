#include "kernels/cuda/dense/unpack_rows.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ops/beside.cuh"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

constexpr int kUnpackThreads = 256;
constexpr int kVectorBytes = 16;  // contiguous bytes of a row: a k-block has two such vectors
constexpr int kBlockBytes = mma16::block_bytes(8);
// A warp copies neighbouring vectors of neighbouring rows: it writes 128 bytes of each row, and
// reads 64 bytes at a time.
constexpr int kWarpVectors = 8, kWarpRows = 4;
constexpr int kGroup = 128;

struct UnpackArgs {
  const uint8_t* codes;
  const float* scales;  // [panel][group][16]
  uint8_t* rows;
  float* row_scales;
  int blocks, groups, scale_row, num_scales;
  unsigned units;  // one unit: kWarpRows rows by kWarpVectors vectors
};

__global__ void __launch_bounds__(kUnpackThreads) unpack_vectors(const UnpackArgs a) {
  begin_kernel(Overlap::kNone);
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * (kUnpackThreads / 32);
  const unsigned row_units = static_cast<unsigned>(a.blocks) * 2 / kWarpVectors;
  const int64_t row_bytes = int64_t{a.blocks} * mma16::kCols;
  for (unsigned unit = (blockIdx.x * kUnpackThreads + threadIdx.x) / 32; unit < a.units;
       unit += warps) {
    const unsigned rows = unit / row_units, vector = unit % row_units * kWarpVectors + lane / 4;
    // A panel stores its even rows first, then its odd rows.
    const unsigned panel = rows / 4, odd = rows % 2, g = rows % 4 / 2 * kWarpRows + lane % 4;
    const uint8_t* const block = a.codes + (int64_t{panel} * a.blocks + vector / 2) * kBlockBytes;
    const uint4 sixteen = *reinterpret_cast<const uint4*>(
        block + odd * (kBlockBytes / 2) + vector % 2 * (kBlockBytes / 4) + g * kVectorBytes);
    const int64_t row = panel * mma16::kRows + 2 * g + odd;
    *reinterpret_cast<uint4*>(a.rows + row * row_bytes + vector * kVectorBytes) = sixteen;
  }
  for (int i = blockIdx.x * kUnpackThreads + threadIdx.x; i < a.num_scales;
       i += gridDim.x * kUnpackThreads) {
    const int64_t panel = i / a.groups * (kGroup / mma16::kRows), group = i % a.groups;
    a.row_scales[i / a.groups * a.scale_row + group] =
        a.scales[(panel * a.groups + group) * mma16::kRows];
  }
}

}  // namespace

Status unpack_rows(const Queue& queue, const KernelWeights& weights, const CublasLtBlockScratch& at,
                   uint8_t* to, Stream stream) {
  const MatrixShape& shape = weights.shape;
  const auto* const base = weights.buffer.as<uint8_t>();
  const auto blocks = static_cast<int>(shape.k / mma16::kCols);
  const auto groups = static_cast<int>(shape.k / kGroup);
  const int64_t row_bands = (shape.n + kGroup - 1) / kGroup;
  const UnpackArgs args{base,
                        reinterpret_cast<const float*>(base + weights.sections.scales),
                        to,
                        reinterpret_cast<float*>(to + at.weight_scales),
                        blocks,
                        groups,
                        static_cast<int>(at.scale_row),
                        static_cast<int>(row_bands * groups),
                        static_cast<unsigned>(shape.n / kWarpRows * (blocks * 2 / kWarpVectors))};
  const int64_t wanted = (int64_t{args.units} * 32 + kUnpackThreads - 1) / kUnpackThreads;
  return launch_early(queue, stream, "unpack_rows", unpack_vectors, wanted, kUnpackThreads, 0,
                      args);
}

}  // namespace moracle::cuda
