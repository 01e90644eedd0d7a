#include "oracle/forms/kernel_form.h"

#include "base/text.h"

namespace moracle {
namespace {

std::string name_of(const NamedKernel& form) {
  return form.name;
}

std::string name_of(const CpuDotForm& form) {
  const cpu::DotForm& dot = form.dot;
  const char* const products[] = {
      dot.in_limbs ? "floats in three i8 limbs, exact sums" : "i8 x i8, exact sums",
      dot.two_terms ? "products of two bf16 terms, f32 sums" : "bf16 products, f32 sums",
      "f32 products and sums", "floats as i16, exact sums"};
  return str(name(form.weights), dot.by_codes ? " codes, " : " row blocks, ",
             products[static_cast<size_t>(dot.x)],
             dot.scales == cpu::StoredScales::kSteps ? " of 256 columns, " : ", ",
             form.instruction);
}

std::string name_of(const CudaForm& form) {
  using Kernel = CudaForm::Kernel;
  constexpr const char* kProducts[] = {"bf16 products, f32 sums",
                                       "f16 products, f32 sums",
                                       "i8 x i8, exact sums",
                                       "fp8 x fp8, f32 sums of 128 columns each",
                                       "fp8 x fp8, f32 sums of at most 256 columns each",
                                       "bf16 x two bf16 of a weight, f32 sums"};
  const auto kernel = [&]() -> std::string {
    switch (form.kernel) {
      case Kernel::kMma:
        return str("mma.sync, tiles of ", form.rows, " rows");
      case Kernel::kSplitColumns:
        return "mma.sync, columns shared by the warps of a block";
      case Kernel::kStreamed:
        return str("mma.sync, streamed panels for ", form.rows, " rows");
      case Kernel::kStreamedToken:
        return str("mma.sync, streamed panels for ", form.rows, " tokens, weighted sum");
      case Kernel::kSkinny:
        return str("mma.sync, split-K over a cluster, for up to ", form.rows, " tokens");
      case Kernel::kWgmma:
        return str("wgmma, tiles of ", form.rows, " rows");
      default:
        return "cuBLASLt";
    }
  };
  return str(kernel(), ", ", kProducts[static_cast<size_t>(form.products)],
             form.row_exponents ? ", one exponent per row" : "");
}

std::string name_of(const OpenClForm& form) {
  constexpr const char* kKernels[] = {"lines of 16 rows", "tiles of 64 x 128 in local memory",
                                      "lines of 16 rows as vectors", "matrix engines"};
  const bool matrix = form.kernel == OpenClForm::Kernel::kMatrix;
  const char* const sums[] = {matrix ? "bf16 products, f32 sums" : "f32 products and sums",
                              matrix ? "i8 x i8, exact sums" : "exact sums",
                              "i8 x i8, exact sums of 32 columns each"};
  return str(kKernels[static_cast<size_t>(form.kernel)], ", ",
             sums[static_cast<size_t>(form.sums)]);
}

}  // namespace

std::string name(const KernelForm& form) {
  return std::visit([](const auto& one) { return name_of(one); }, form);
}

}  // namespace moracle
