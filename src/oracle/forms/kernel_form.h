// A kernel as plain values: the planner of a backend chooses them, its maker reads them. Only
// people read the name.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "moracle/base.h"
#include "oracle/forms/dot_form.h"

namespace moracle {

/// A kernel of a backend that has nothing to choose.
struct NamedKernel {
  std::string name;
};

/// Layout vnni16 on a CPU (kernels/cpu/gemm).
struct CpuDotForm {
  cpu::DotIsa isa = cpu::DotIsa::kPortable;
  cpu::DotForm dot;
  DType weights = DType::kF32;
  std::string_view instruction;  ///< that multiplies, as in the measured limits: "avx512_vnni"
};

/// What tensor cores multiply, and how they add.
enum class CudaProducts : uint8_t {
  kBf16,
  kF16,
  kInt8,       ///< exact sums
  kFp8Groups,  ///< f32 sums of 128 columns each
  kFp8Wide,    ///< f32 sums of at most 256 columns each
  kTwoBf16,    ///< weights with their scales, as the sum of two bf16
};

struct CudaForm {
  enum class Kernel : uint8_t {
    kMma,            ///< mma.sync, tiles of `rows` rows (gemm_sm80)
    kSplitColumns,   ///< mma.sync, the warps of a block split the columns (gemv/dense_bf16.cu)
    kStreamed,       ///< mma.sync on streamed panels, for `rows` rows of an expert (gemv)
    kStreamedToken,  ///< the same, and the weighted sum, for `rows` tokens
    kWgmma,          ///< wgmma, tiles of `rows` rows (gemm_sm90)
    kCublasLt,       ///< NVIDIA's library (dense)
    kSkinny,         ///< mma.sync, clusters split K, for up to `rows` tokens (gemm_skinny)
  };
  Kernel kernel = Kernel::kMma;
  CudaProducts products = CudaProducts::kBf16;
  int rows = 0;
  bool row_exponents = false;  ///< the exponents of weights have moved into their codes
  bool operator==(const CudaForm&) const = default;
};

struct OpenClForm {
  enum class Kernel : uint8_t {
    kGemv,     ///< simt/gemv.cl
    kGemm,     ///< simt/gemm.cl
    kVectors,  ///< simt/vectors.cl
    kMatrix,   ///< matrix/matrix.cl
  };
  enum class Sums : uint8_t {
    kFloats,
    kIntegers,  ///< exact over whole rows
    kGroups,    ///< exact over 32 columns each
  };
  Kernel kernel = Kernel::kGemv;
  Sums sums = Sums::kFloats;
};

using KernelForm = std::variant<NamedKernel, CpuDotForm, CudaForm, OpenClForm>;

/// "i4 codes, f32 products and sums, avx2": for people. Code reads the form.
std::string name(const KernelForm& form);

}  // namespace moracle
