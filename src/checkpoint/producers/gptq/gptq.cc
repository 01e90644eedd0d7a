// GPTQ as AutoGPTQ and GPTQModel write it: codes are packed along K into words, zero points along
// N.
//   qweight i32 [K·b/32, N]   word r of a column holds codes r·32/b …, low bits first
//   qzeros  i32 [G, N·b/32]   "gptq" (v1) stores zero - 1, "gptq_v2" stores zero
//   scales  f16 [G, N]
//   g_idx   i32 [K]           the group of each column; old files without desc_act omit it.
//                             It decides whether columns are out of left-to-right order. With
//                             desc_act they often are in order, for example with static groups.
// value = (code - zero) · scale. Code and zero are unsigned here. In canonical form they are
// signed, 2^(b-1) less.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/gptq/gptq_options.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/producers/packed.h"
#include "checkpoint/producers/producer.h"

namespace moracle {
namespace {

class GptqReader : public Reader {
 public:
  explicit GptqReader(GptqConfig config) : config_(std::move(config)) {}

  bool excludes(const std::string& module) const override { return config_.excludes(module); }
  bool stores(const Tensors& tensors, const std::string& module) const override {
    return tensors.find(module + ".qweight") != nullptr;
  }
  std::string expected(const std::string& module) const override {
    return module + ".{qweight,qzeros,scales,g_idx}";
  }
  Result<DescribedLinear> describe(const Tensors& tensors,
                                   const std::string& module) const override {
    return describe_gptq(tensors, module, config_.options(module));
  }

 private:
  GptqConfig config_;
};

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module,
                             const GptqOptions& options, const MatrixShape& shape,
                             ThreadPool& pool) {
  CanonicalMatrix matrix = matrix_of(shape);
  MORACLE_TRY(const TensorData words, tensors.read(module + ".qweight", pool));
  unpack_codes(PackOrder::kGptq, words.view, matrix, pool);
  MORACLE_TRY(matrix.scales, read_transposed_scales(tensors, module + ".scales", shape.n));
  // v1 stores zero - 1 in b bits, so a zero of 0 wraps around.
  MORACLE_CHECK(read_zero_points(tensors, module + ".qzeros", PackOrder::kGptq, options.v2 ? 0 : 1,
                                 "sym", matrix));
  if (shape.group_index) {
    MORACLE_TRY(matrix.group_index,
                read_group_index(tensors, module + ".g_idx", matrix.scale_cols()));
  }
  if (shape.bias) {
    MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
  }
  return matrix;
}

Result<std::unique_ptr<Reader>> open_gptq(const Config& config) {
  MORACLE_TRY(GptqConfig read, GptqConfig::read(config));
  return std::unique_ptr<Reader>(new GptqReader(std::move(read)));
}

}  // namespace

Result<DescribedLinear> describe_gptq(const Tensors& tensors, const std::string& module,
                                      const GptqOptions& options) {
  const std::string qweight = module + ".qweight";
  MORACLE_TRY(const TensorView codes, tensors.get(qweight));
  const int64_t per_word = 32 / options.bits;
  if (codes.dtype != DType::kI32 || codes.shape.size() != 2 || codes.shape[1] % per_word != 0) {
    return tensors.wrong(qweight, str("i32 [K/", per_word, ", N] with N a multiple of ", per_word),
                         "it is " + to_string(codes));
  }
  DescribedLinear linear;
  MatrixShape& shape = linear.shape;
  shape.k = codes.shape[0] * per_word;
  shape.n = codes.shape[1];
  shape.key = options.bits == 4 ? int4_static_group(options.group_size)
                                : int8_static_group(options.group_size);
  shape.key.symmetric = options.symmetric;
  const int64_t group = options.group_size == GroupShape::kAll ? shape.k : options.group_size;
  const int64_t groups = group == 0 ? 0 : (shape.k + group - 1) / group;

  std::vector<std::string> names = {qweight, module + ".qzeros", module + ".scales"};
  MORACLE_CHECK(tensors.get(names[1], DType::kI32, {groups, shape.n / per_word}));
  MORACLE_CHECK(check_transposed_scales(tensors, names[2], groups, shape.n, group));
  const std::string order = module + ".g_idx";
  if (options.desc_act || tensors.find(order) != nullptr) {
    MORACLE_CHECK(tensors.get(order, DType::kI32, {shape.k}));
    MORACLE_TRY(TensorData g_idx, tensors.read(order));
    shape.group_index = !in_order(g_idx.view, group);
    if (shape.group_index) linear.column_groups = std::move(g_idx);
    names.push_back(order);
  }
  MORACLE_TRY(shape.bias, add_bias(tensors, module, shape.n, names));
  linear.scheme.weight = shape.key;
  linear.source = source_of(tensors, shape.n, std::move(names));
  linear.source.read = [&tensors, module, options, shape](ThreadPool& pool) {
    return read(tensors, module, options, shape, pool);
  };
  return linear;
}

constinit const Producer kGptqProducer{
    .name = "gptq", .open = open_gptq, .config_file = "quantize_config.json"};

}  // namespace moracle
