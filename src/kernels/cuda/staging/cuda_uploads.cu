// Packs weights on the GPU. Each code of the canonical rows goes to the bit that the index function
// of its layout gives. The transfer is the bottleneck: PCIe, or the disk before it.
#include "kernels/cuda/staging/cuda_uploads.h"

#include <algorithm>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/launch.cuh"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

// Canonical rows [first_row, first_row + rows) of a matrix, as they arrived on the device.
struct ArrivedRows {
  const uint8_t* codes;
  int64_t row_bytes, first_row, rows;
  MatrixShape shape;
  uint8_t* out;  // the expert's codes
};

// `Index` returns the bit of code (r, c) within the codes, like code_bit of the layout.
template <class Index, class Code>
__global__ void pack_rows(ArrivedRows a) {
  constexpr int kBits = 8 * sizeof(Code);
  const int64_t count = a.rows * a.shape.k;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = i / a.shape.k, c = i - r * a.shape.k;
    const Code code = reinterpret_cast<const Code*>(a.codes + r * a.row_bytes)[c];
    *reinterpret_cast<Code*>(a.out + Index()(a.shape, kBits, a.first_row + r, c) / 8) = code;
  }
}

// Two codes share a byte in the source and in the layout, but not the same two. Use atomicOr to
// keep neighbouring codes that other threads write.
template <class Index>
__global__ void pack_nibbles(ArrivedRows a) {
  const int64_t count = a.rows * a.row_bytes;
  auto put = [&](int64_t r, int64_t c, uint32_t code) {
    const int64_t bit = Index()(a.shape, 4, a.first_row + r, c);
    atomicOr(reinterpret_cast<uint32_t*>(a.out) + bit / 32, code << (bit % 32));
  };
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = i / a.row_bytes, c = 2 * (i - r * a.row_bytes);
    const uint32_t two = a.codes[i];
    put(r, c, two & 15u);
    if (c + 1 < a.shape.k) put(r, c + 1, two >> 4);
  }
}

struct Packing {
  const Layout* layout;
  // Null if the layout keeps canonical rows.
  Status (*pack)(const Queue& queue, const ArrivedRows& rows);
};

template <class Index>
Status pack(const Queue& queue, const ArrivedRows& rows) {
  constexpr int kThreads = 256, kEach = 4;
  const int64_t blocks = (rows.rows * rows.shape.k + kThreads * kEach - 1) / (kThreads * kEach);
  const auto start = [&](auto kernel) {
    return launch(queue, {}, "pack_rows", kernel, blocks, kThreads, 0, rows);
  };
  switch (bits(rows.shape.key.dtype)) {
    case 4:
      return start(pack_nibbles<Index>);
    case 8:
      return start(pack_rows<Index, uint8_t>);
    case 16:
      return start(pack_rows<Index, uint16_t>);
    default:
      return start(pack_rows<Index, uint32_t>);
  }
}

struct Mma16Index {
  __device__ int64_t operator()(const MatrixShape& shape, int code_bits, int64_t r,
                                int64_t c) const {
    return mma16::code_bit(code_bits, shape.k, r, c);
  }
};

// One entry for each layout that the GPU packs. Host threads pack the others.
constexpr Packing kPackings[] = {
    {&kCanonicalLayout, nullptr},
    {&kMma16Layout, pack<Mma16Index>},
};

const Packing* find(const Layout& layout) {
  for (const Packing& packing : kPackings) {
    if (packing.layout == &layout) return &packing;
  }
  return nullptr;
}

class CudaUploads final : public Uploads {
 public:
  explicit CudaUploads(CudaDevice& device) : device_(device) {}

  Status send(std::byte* to, const std::byte* from, size_t bytes) override {
    return device_.weight_staging().send(to, from, bytes);
  }
  bool packs(const Layout& layout, const MatrixShape& shape) const override {
    const int64_t row_bytes = (shape.k * bits(shape.key.dtype) + 7) / 8;
    return find(layout) != nullptr && row_bytes > 0 &&
           row_bytes <= static_cast<int64_t>(WeightStaging::kBytes);
  }

  Status send_rows(const Layout& layout, const MatrixShape& shape, const CanonicalMatrix& slice,
                   int64_t first_row, int64_t begin, int64_t end, std::byte* codes) override {
    const Packing& packing = *find(layout);
    const int64_t row_bytes = slice.row_bytes();
    if (packing.pack == nullptr) {
      return send(codes + (first_row + begin) * row_bytes, slice.codes.data() + begin * row_bytes,
                  (end - begin) * row_bytes);
    }
    const int64_t most = static_cast<int64_t>(WeightStaging::kBytes) / row_bytes;
    for (int64_t r = begin; r < end; r += most) {
      const int64_t rows = std::min(most, end - r);
      MORACLE_CHECK(device_.weight_staging().send_to_pack(
          slice.codes.data() + r * row_bytes, rows * row_bytes, [&](const std::byte* arrived) {
            return packing.pack(device_.queue(),
                                {reinterpret_cast<const uint8_t*>(arrived), row_bytes,
                                 first_row + r, rows, shape, reinterpret_cast<uint8_t*>(codes)});
          }));
    }
    return {};
  }

  Status finish() override { return device_.weight_staging().finish(); }

 private:
  CudaDevice& device_;
};

}  // namespace

std::unique_ptr<Uploads> open_uploads(Device& device) {
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return nullptr;
  return std::make_unique<CudaUploads>(*gpu);
}

}  // namespace moracle::cuda
