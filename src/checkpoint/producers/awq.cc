// AWQ as AutoAWQ and GPTQModel write it, version "gemm". Codes and zero points are packed along N.
// The columns of each eight are in the order 0 2 4 6 1 3 5 7.
//   qweight i32 [K, N/8]
//   qzeros  i32 [K/g, N/8]   if zero_point is false: absent, or 8 everywhere
//   scales  f16/bf16 [K/g, N]
// value = (code - zero) · scale.
#include "checkpoint/producers/awq.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/producers/packed.h"
#include "checkpoint/producers/producer.h"

namespace moracle {
namespace {

class AwqReader : public Reader {
 public:
  AwqReader(QuantKey key, std::vector<std::string> plain) : key_(key), plain_(std::move(plain)) {}

  // Any matching part of a module's name excludes the module.
  bool excludes(const std::string& module) const override {
    return std::any_of(plain_.begin(), plain_.end(),
                       [&](const std::string& text) { return module.find(text) != module.npos; });
  }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return tensors.find(module + ".qweight") != nullptr;
  }
  std::string expected(const std::string& module) const override {
    return module + ".{qweight,qzeros,scales}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    return describe_awq(tensors, module, key_, "zero_point false");
  }

 private:
  QuantKey key_;
  std::vector<std::string> plain_;
};

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module,
                             const MatrixShape& shape, const char* symmetric, ThreadPool& pool) {
  CanonicalMatrix matrix = matrix_of(shape);
  MORACLE_TRY(const TensorData words, tensors.read(module + ".qweight", pool));
  unpack_codes(PackOrder::kAwq, words.view, matrix, pool);
  MORACLE_TRY(matrix.scales, read_transposed_scales(tensors, module + ".scales", shape.n));
  if (tensors.find(module + ".qzeros") != nullptr) {
    MORACLE_CHECK(
        read_zero_points(tensors, module + ".qzeros", PackOrder::kAwq, 0, symmetric, matrix));
  }
  if (shape.bias) {
    MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
  }
  return matrix;
}

// The three keys are equivalent. Files differ in the key that they use, and in case.
Status check_version(const Config& config) {
  for (const char* key : {"version", "checkpoint_format", "format"}) {
    MORACLE_TRY(const std::string version, config.text_or("gemm", {key}));
    std::string lower = version;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (lower != "gemm") return config.unsupported({key}, "gemm", "it is " + version);
  }
  // The kernels of llm-awq use another layout.
  MORACLE_TRY(const std::string backend, config.text_or("autoawq", {"backend"}));
  if (backend == "llm-awq") return config.unsupported({"backend"}, "autoawq", "it is llm-awq");
  return {};
}

Result<std::unique_ptr<Reader>> open_awq(const Config& config) {
  MORACLE_CHECK(check_version(config));
  MORACLE_TRY(const int64_t width, config.integer({"bits", "w_bit"}, 2, 8));
  if (width != 4) return config.unsupported({"bits", "w_bit"}, "4", str("it is ", width));
  MORACLE_TRY(const int64_t size, config.integer_or(128, {"group_size", "q_group_size"}, -1));
  if (size == 0) {
    return config.wrong({"group_size", "q_group_size"}, "-1 or a positive size", "it is 0");
  }
  QuantKey key = int4_static_group(size);
  MORACLE_TRY(const bool zero_point, config.boolean_or(true, {"zero_point"}));
  key.symmetric = !zero_point;
  MORACLE_TRY(auto plain, config.texts({"modules_to_not_convert"}));
  return std::unique_ptr<Reader>(new AwqReader(key, std::move(plain)));
}

}  // namespace

Result<DescribedLinear> describe_awq(const Tensors& tensors, const std::string& module,
                                     const QuantKey& key, const char* symmetric) {
  std::vector<std::string> names = {module + ".qweight", module + ".scales"};
  MORACLE_TRY(const TensorView codes, tensors.get(names[0]));
  if (codes.dtype != DType::kI32 || codes.shape.size() != 2) {
    return tensors.wrong(names[0], "i32 [K, N/8]", "it is " + to_string(codes));
  }
  DescribedLinear linear;
  MatrixShape& shape = linear.shape;
  shape.k = codes.shape[0];
  shape.n = codes.shape[1] * 8;
  shape.key = linear.scheme.weight = key;
  const int64_t size = key.group.cols == GroupShape::kAll ? shape.k : key.group.cols;
  const int64_t groups = size == 0 ? 0 : (shape.k + size - 1) / size;
  MORACLE_CHECK(check_transposed_scales(tensors, names[1], groups, shape.n, size));
  const std::string zeros = module + ".qzeros";
  if (!key.symmetric || tensors.find(zeros) != nullptr) {
    MORACLE_CHECK(tensors.get(zeros, DType::kI32, {groups, codes.shape[1]}));
    names.push_back(zeros);
  }
  MORACLE_TRY(shape.bias, add_bias(tensors, module, shape.n, names));
  linear.source = source_of(tensors, shape.n, std::move(names));
  linear.source.read = [&tensors, module, shape, symmetric](ThreadPool& pool) {
    return read(tensors, module, shape, symmetric, pool);
  };
  return linear;
}

constinit const Producer kAwqProducer{
    .name = "awq", .open = open_awq, .config_file = "quant_config.json"};

}  // namespace moracle
