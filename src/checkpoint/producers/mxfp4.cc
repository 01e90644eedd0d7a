// quant_method "mxfp4", as in GPT-OSS: one tensor holds all experts of a layer, with e as first
// index.
//   gate_up_proj_blocks  u8 [E, 2I, H/32, 16]   two e2m1 codes per byte, the low nibble first
//   gate_up_proj_scales  u8 [E, 2I, H/32]       value = code · 2^(byte - 127)
//   gate_up_proj_bias    bf16 [E, 2I]
// down_proj has the same form. Rows of gate and up alternate; the caller reorders them.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/fp8_matrix.h"
#include "checkpoint/producers/module_tensors.h"

namespace moracle {
namespace {

class Mxfp4Reader : public Reader {
 public:
  explicit Mxfp4Reader(std::vector<std::string> excluded) : excluded_(std::move(excluded)) {}

  bool excludes(const std::string& module) const override {
    return std::any_of(excluded_.begin(), excluded_.end(), [&](const std::string& text) {
      return !text.empty() && module.find(text) != module.npos;
    });
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return tensors.find(module + "_blocks") != nullptr ||
           tensors.find(module + "_scales") != nullptr;
  }
  std::string expected(const std::string& module) const override {
    return module + "_{blocks,scales}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    return Error{ErrorKind::kUnsupported, tensors.file_of(module + "_blocks"),
                 "module '" + module + "'", "to be experts stored in one tensor",
                 "it is requested as one matrix"};
  }
  Result<DescribedLinear> describe_expert(const Tensors& tensors, const std::string& module,
                                          int64_t e, int64_t num_experts) const override;

 private:
  std::vector<std::string> excluded_;
};

Result<DescribedLinear> Mxfp4Reader::describe_expert(const Tensors& tensors,
                                                     const std::string& module, int64_t e,
                                                     int64_t num_experts) const {
  constexpr int64_t kGroup = 32, kBytes = 16;
  std::vector<std::string> names = {module + "_blocks", module + "_scales"};
  MORACLE_TRY(const TensorView blocks, tensors.get(names[0]));
  if (blocks.dtype != DType::kU8 || blocks.shape.size() != 4 || blocks.shape[0] != num_experts ||
      blocks.shape[3] != kBytes) {
    return tensors.wrong(names[0], str("u8 [", num_experts, ", N, K/32, 16]"),
                         "it is " + to_string(blocks));
  }
  const int64_t n = blocks.shape[1], groups = blocks.shape[2];
  MORACLE_CHECK(tensors.get(names[1], exponents_of(tensors, names[1]), {num_experts, n, groups}));

  DescribedLinear linear;
  linear.scheme.weight = kMxfp4Static;
  linear.shape = {.n = n, .k = groups * kGroup, .key = kMxfp4Static};
  MORACLE_TRY(linear.shape.bias, add_expert_bias(tensors, module, num_experts, n, names));
  const int64_t per_expert = n * groups;
  linear.source.n = n;
  linear.source.file = tensors.file_of(names.front());
  linear.source.tensors = std::move(names);
  linear.source.source_bytes = per_expert * (kBytes + 1);
  linear.source.read = [&tensors, module, e, per_expert,
                        shape = linear.shape](ThreadPool& pool) -> Result<CanonicalMatrix> {
    CanonicalMatrix matrix = matrix_of(shape);
    const int64_t codes = per_expert * kBytes;
    MORACLE_TRY(TensorData stored, tensors.read(module + "_blocks", e * codes, codes, pool));
    set_codes(matrix, std::move(stored));
    MORACLE_TRY(matrix.scales,
                read_exponents(tensors, module + "_scales", e * per_expert, per_expert));
    if (shape.bias) {
      MORACLE_TRY(matrix.bias, read_expert_bias(tensors, module, e, shape.n));
    }
    return matrix;
  };
  return linear;
}

Result<std::unique_ptr<Reader>> open_mxfp4(const Config& config) {
  MORACLE_TRY(std::vector<std::string> excluded, config.texts({"modules_to_not_convert"}));
  return std::unique_ptr<Reader>(new Mxfp4Reader(std::move(excluded)));
}

}  // namespace

constinit const Producer kMxfp4Producer{.name = "mxfp4", .open = open_mxfp4};

}  // namespace moracle
