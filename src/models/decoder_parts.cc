#include "models/decoder_parts.h"

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

// Two dialects: transformers 5 nests the rotary settings in rope_parameters.
Status read_rope(const Config& config, DecoderSpec& spec) {
  MORACLE_TRY(spec.rope_theta, config.number_or(10'000, {"rope_theta"}));
  MORACLE_TRY(const auto rope, config.object({"rope_parameters", "rope_scaling"}));
  if (!rope) return {};
  MORACLE_TRY(spec.rope_theta, rope->number_or(spec.rope_theta, {"rope_theta"}));
  MORACLE_TRY(const std::string type, rope->text_or("default", {"rope_type", "type"}));
  if (type != "default") return rope->unsupported({"rope_type"}, "default", "it is " + type);
  return {};
}

Status check_size(const Checkpoint& checkpoint, const DescribedMatrix& matrix,
                  const std::vector<int64_t>& rows, int64_t k) {
  if (matrix.part_rows() == rows && matrix.shape().k == k) return {};
  const std::string first = matrix.tensors()[0];
  return Error{ErrorKind::kBadFile, checkpoint.state().tensors.file_of(first),
               "tensor '" + first + "'",
               str(join(rows, " + "), " rows of ", k, " columns (from config.json)"),
               str("there are ", join(matrix.part_rows(), " + "), " of ", matrix.shape().k)};
}

}  // namespace

Result<DecoderSpec> read_decoder_spec(const Config& config) {
  DecoderSpec spec;
  MORACLE_TRY(spec.hidden_size, config.integer({"hidden_size"}, 1, 1 << 20));
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 16));
  MORACLE_TRY(spec.num_kv_heads,
              config.integer_or(spec.num_heads, {"num_key_value_heads"}, 1, spec.num_heads));
  MORACLE_TRY(spec.head_dim,
              config.integer_or(spec.hidden_size / spec.num_heads, {"head_dim"}, 2, 1 << 16));
  MORACLE_TRY(spec.vocab_size, config.integer({"vocab_size"}, 1));
  MORACLE_TRY(spec.max_context, config.integer_or(32'768, {"max_position_embeddings"}, 1));
  MORACLE_TRY(const double epsilon, config.number_or(1e-6, {"rms_norm_eps"}));
  if (!(epsilon >= 0 && epsilon < 1)) {
    return config.wrong({"rms_norm_eps"}, "a number from 0 to 1", str("it is ", epsilon));
  }
  spec.norm_epsilon = static_cast<float>(epsilon);
  if (spec.num_heads % spec.num_kv_heads != 0) {
    return config.wrong({"num_key_value_heads"}, str("a divisor of ", spec.num_heads, " heads"),
                        str("it is ", spec.num_kv_heads));
  }
  if (spec.head_dim % 2 != 0) {
    return config.wrong({"head_dim"}, "an even number", str("it is ", spec.head_dim));
  }
  MORACLE_CHECK(read_rope(config, spec));
  if (!(spec.rope_theta >= 1)) {
    return config.wrong({"rope_theta"}, "a number of at least 1", str("it is ", spec.rope_theta));
  }
  MORACLE_TRY(const bool sliding, config.boolean_or(false, {"use_sliding_window"}));
  if (sliding) return config.unsupported({"use_sliding_window"}, "false", "it is true");
  return spec;
}

Result<DescribedMatrix> describe_linear(const Checkpoint& checkpoint,
                                        const std::vector<std::string>& modules,
                                        const std::vector<int64_t>& rows, int64_t k) {
  MORACLE_TRY(DescribedMatrix matrix, checkpoint.linear(modules));
  MORACLE_CHECK(check_size(checkpoint, matrix, rows, k));
  return matrix;
}

Result<DescribedMatrix> describe_router(const Checkpoint& checkpoint, const std::string& module,
                                        const LayerSpec& experts) {
  MORACLE_TRY(DescribedMatrix router, checkpoint.router(module));
  MORACLE_CHECK(check_size(checkpoint, router, {experts.num_experts}, experts.hidden_size));
  return router;
}

Result<DescribedWeights> describe_dense_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                            const DecoderSpec& spec, int64_t intermediate) {
  MORACLE_TRY(DescribedMatrix w13,
              describe_linear(checkpoint, {mlp + ".gate_proj", mlp + ".up_proj"},
                              {intermediate, intermediate}, spec.hidden_size));
  MORACLE_TRY(DescribedMatrix w2,
              describe_linear(checkpoint, {mlp + ".down_proj"}, {spec.hidden_size}, intermediate));
  LayerSpec layer{.name = mlp, .hidden_size = spec.hidden_size, .intermediate_size = intermediate};
  layer.scheme = w13.scheme();
  layer.group_index = w13.shape().group_index || w2.shape().group_index;
  layer.bias = w13.shape().bias || w2.shape().bias;
  layer.set_matrices({w13.shape(), w2.shape()});
  return DescribedWeights{std::move(layer), std::move(w13), std::move(w2)};
}

Result<TensorView> describe_embedding(const Checkpoint& checkpoint, const std::string& name,
                                      const DecoderSpec& spec) {
  MORACLE_TRY(const TensorView embedding, checkpoint.tensor(name));
  const std::vector<int64_t> shape = {spec.vocab_size, spec.hidden_size};
  const bool is_float = embedding.dtype == DType::kBF16 || embedding.dtype == DType::kF16 ||
                        embedding.dtype == DType::kF32;
  if (is_float && embedding.shape == shape) return embedding;
  return checkpoint.state().tensors.wrong(name, str("bf16, f16 or f32 [", join(shape), "]"),
                                          "it is " + to_string(embedding));
}

}  // namespace moracle
