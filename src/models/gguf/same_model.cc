#include "models/gguf/same_model.h"

#include <cmath>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace same_model {
namespace {

// Metadata holds f32 numbers, so computed ones may differ in the last bit.
bool same(float a, float b) {
  constexpr float kNone = 1e-25f;  // frequencies of pairs that do not rotate
  if (a == b || (std::fabs(a) < kNone && std::fabs(b) < kNone)) return true;  // or infinite
  return std::fabs(a - b) <= 1e-6f * std::max(std::fabs(a), std::fabs(b));
}
bool same(int64_t a, int64_t b) {
  return a == b;
}
std::string shown(float value) {
  return str(value);
}
std::string shown(int64_t value) {
  return str(value);
}

class Comparison {
 public:
  Comparison(std::string_view architecture, const std::string& file)
      : architecture_(architecture), file_(file) {}
  void enter(std::string place) { place_ = std::move(place); }

  template <class T>
  Status operator()(const char* what, T source, T written) const {
    if constexpr (std::is_same_v<T, float>) {
      if (!same(source, written)) return differ(what, shown(source), shown(written));
    } else {
      const auto a = static_cast<int64_t>(source), b = static_cast<int64_t>(written);
      if (!same(a, b)) return differ(what, shown(a), shown(b));
    }
    return {};
  }
  Status all(const char* what, const std::vector<float>& source,
             const std::vector<float>& written) const {
    if (source.size() != written.size())
      return differ(what, str(source.size(), " numbers"), str(written.size(), " numbers"));
    for (size_t i = 0; i < source.size(); ++i) {
      if (same(source[i], written[i])) continue;
      return differ(what, str(shown(source[i]), " at index ", i),
                    str(shown(written[i]), " at index ", i));
    }
    return {};
  }
  Status size(const char* what, const std::vector<float>& source,
              const std::vector<float>& written) const {
    return (*this)(what, source.size(), written.size());
  }
  Status matrix(const char* what, const DescribedMatrix& source,
                const DescribedMatrix& written) const {
    const MatrixShape &a = source.shape(), &b = written.shape();
    if (a.n == b.n && a.k == b.k && a.bias == b.bias) return {};
    const auto text = [](const MatrixShape& shape) {
      return str("[", shape.n, ", ", shape.k, "]", shape.bias ? " with a bias" : "");
    };
    return differ(what, text(a), text(b));
  }
  Status weights(const char* what, const DescribedWeights& source,
                 const DescribedWeights& written) const {
    MORACLE_CHECK(matrix(what, source.w13, written.w13));
    MORACLE_CHECK(matrix(what, source.w2, written.w2));
    const LayerSpec &a = source.spec, &b = written.spec;
    MORACLE_CHECK((*this)("number of experts", a.num_experts, b.num_experts));
    MORACLE_CHECK((*this)("experts per token", a.top_k, b.top_k));
    if (a.activation != b.activation) {
      const auto text = [](const ActivationSpec& one) {
        return str(name(one.function), " with limit ", one.limit, ", alpha ", one.alpha);
      };
      return differ("activation function", text(a.activation), text(b.activation));
    }
    if (a.routing != b.routing) return differ("routing", name(a.routing), name(b.routing));
    return {};
  }
  Error differ(std::string_view what, std::string_view source, std::string_view written) const {
    return {ErrorKind::kUnsupported, file_, place_,
            str(what, " ", written, ", which GGUF files of ", architecture_, " have"),
            str("it is ", source)};
  }

 private:
  std::string_view architecture_;
  const std::string& file_;
  std::string place_;
};

Status compare(const Comparison& check, const Rotary& a, const Rotary& b) {
  MORACLE_CHECK(check.all("rotary frequencies", a.frequencies, b.frequencies));
  MORACLE_CHECK(
      check.all("rotary frequencies of long contexts", a.long_frequencies, b.long_frequencies));
  MORACLE_CHECK(check("factor of the rotary embedding", a.factor, b.factor));
  return check("interleaved rotary embedding", a.interleaved, b.interleaved);
}

Status compare(const Comparison& check, const GroupedQueryDescription& a,
               const GroupedQueryDescription& b) {
  MORACLE_CHECK(check("heads", a.spec.num_heads, b.spec.num_heads));
  MORACLE_CHECK(check("heads of keys", a.spec.num_kv_heads, b.spec.num_kv_heads));
  MORACLE_CHECK(check("head_dim", a.spec.head_dim, b.spec.head_dim));
  MORACLE_CHECK(check("columns of values", a.spec.value_cols(), b.spec.value_cols()));
  MORACLE_CHECK(check("sliding window", a.spec.window, b.spec.window));
  MORACLE_CHECK(check("attention chunk", a.spec.chunk, b.spec.chunk));
  MORACLE_CHECK(check("epsilon", a.spec.norm_epsilon, b.spec.norm_epsilon));
  MORACLE_CHECK(check("scale of scores", a.spec.scale, b.spec.scale));
  MORACLE_CHECK(check("scale of tempered queries", a.spec.temper_scale, b.spec.temper_scale));
  MORACLE_CHECK(
      check("strength of tempered queries", a.spec.temper_strength, b.spec.temper_strength));
  MORACLE_CHECK(check("norm of queries and keys", a.spec.qk_norm, b.spec.qk_norm));
  MORACLE_CHECK(check("norm of values", a.spec.value_norm, b.spec.value_norm));
  MORACLE_CHECK(check("values that are keys", a.spec.values_are_keys, b.spec.values_are_keys));
  MORACLE_CHECK(check("output gate", a.spec.output_gate, b.spec.output_gate));
  MORACLE_CHECK(check("softplus gate", a.spec.softplus_gate, b.spec.softplus_gate));
  MORACLE_CHECK(compare(check, a.spec.rotary, b.spec.rotary));
  MORACLE_CHECK(check.size("norm of queries", a.q_norm, b.q_norm));
  MORACLE_CHECK(check.size("norm of keys", a.k_norm, b.k_norm));
  MORACLE_CHECK(check.size("sinks", a.sinks, b.sinks));
  MORACLE_CHECK(check.matrix("queries, keys and values", a.qkv, b.qkv));
  return check.matrix("output of attention", a.o, b.o);
}

Status compare(const Comparison& check, const LatentDescription& a, const LatentDescription& b) {
  MORACLE_CHECK(check("heads", a.spec.num_heads, b.spec.num_heads));
  MORACLE_CHECK(check("rank of queries", a.spec.q_rank, b.spec.q_rank));
  MORACLE_CHECK(check("rank of keys and values", a.spec.kv_rank, b.spec.kv_rank));
  MORACLE_CHECK(check("columns without RoPE", a.spec.nope_dim, b.spec.nope_dim));
  MORACLE_CHECK(check("columns with RoPE", a.spec.rope_dim, b.spec.rope_dim));
  MORACLE_CHECK(check("scale of tempered queries", a.spec.temper_scale, b.spec.temper_scale));
  MORACLE_CHECK(
      check("strength of tempered queries", a.spec.temper_strength, b.spec.temper_strength));
  MORACLE_CHECK(check("columns of values", a.spec.value_dim, b.spec.value_dim));
  MORACLE_CHECK(check("gate of each head", a.spec.head_gate, b.spec.head_gate));
  MORACLE_CHECK(check("scale of scores", a.spec.scale, b.spec.scale));
  MORACLE_CHECK(check("epsilon", a.spec.norm_epsilon, b.spec.norm_epsilon));
  MORACLE_CHECK(compare(check, a.spec.rotary, b.spec.rotary));
  MORACLE_CHECK(check.size("norm of queries", a.q_norm, b.q_norm));
  MORACLE_CHECK(check.size("norm of keys and values", a.kv_norm, b.kv_norm));
  MORACLE_CHECK(check("low rank of queries", a.q_a.has_value(), b.q_a.has_value()));
  if (a.q_a) MORACLE_CHECK(check.matrix("q_a", *a.q_a, *b.q_a));
  MORACLE_CHECK(check.matrix("queries", a.q, b.q));
  MORACLE_CHECK(check.matrix("kv_a", a.kv_a, b.kv_a));
  MORACLE_CHECK(check.matrix("kv_b", a.kv_b, b.kv_b));
  MORACLE_CHECK(check("positions that a token sees", a.spec.indexer.top_k, b.spec.indexer.top_k));
  MORACLE_CHECK(check("heads of the indexer", a.spec.indexer.num_heads, b.spec.indexer.num_heads));
  MORACLE_CHECK(check("layer with an indexer", a.indexer.has_value(), b.indexer.has_value()));
  if (a.indexer) {
    MORACLE_CHECK(check.size("norm of index keys", a.indexer->k_norm, b.indexer->k_norm));
    MORACLE_CHECK(check.matrix("index queries", a.indexer->q, b.indexer->q));
    MORACLE_CHECK(check.matrix("index keys", a.indexer->k, b.indexer->k));
    MORACLE_CHECK(check.matrix("weights of index heads", *a.indexer->weights, *b.indexer->weights));
  }
  return check.matrix("output of attention", a.o, b.o);
}

Status compare(const Comparison& check, const GatedDeltaDescription& a,
               const GatedDeltaDescription& b) {
  MORACLE_CHECK(check("heads of keys", a.spec.num_key_heads, b.spec.num_key_heads));
  MORACLE_CHECK(check("heads of values", a.spec.num_value_heads, b.spec.num_value_heads));
  MORACLE_CHECK(check("columns of keys", a.spec.key_dim, b.spec.key_dim));
  MORACLE_CHECK(check("columns of values", a.spec.value_dim, b.spec.value_dim));
  MORACLE_CHECK(check("taps of the convolution", a.spec.kernel, b.spec.kernel));
  MORACLE_CHECK(check("epsilon", a.spec.norm_epsilon, b.spec.norm_epsilon));
  return check.matrix("output of attention", a.o, b.o);
}

Status compare(const Comparison& check, const ShortConvolutionDescription& a,
               const ShortConvolutionDescription& b) {
  MORACLE_CHECK(check("taps of the convolution", a.spec.kernel, b.spec.kernel));
  MORACLE_CHECK(check.matrix("input of the convolution", a.bcx, b.bcx));
  return check.matrix("output of the convolution", a.o, b.o);
}

Status compare(const Comparison& check, const Mamba2Description& a, const Mamba2Description& b) {
  MORACLE_CHECK(check("heads", a.spec.num_heads, b.spec.num_heads));
  MORACLE_CHECK(check("groups", a.spec.num_groups, b.spec.num_groups));
  MORACLE_CHECK(check("columns of a head", a.spec.head_dim, b.spec.head_dim));
  MORACLE_CHECK(check("columns of a state", a.spec.state_dim, b.spec.state_dim));
  MORACLE_CHECK(check("taps of the convolution", a.spec.kernel, b.spec.kernel));
  MORACLE_CHECK(check("columns of a norm", a.spec.norm_size, b.spec.norm_size));
  MORACLE_CHECK(check("least step size", a.spec.least_step, b.spec.least_step));
  MORACLE_CHECK(check("largest step size", a.spec.most_step, b.spec.most_step));
  MORACLE_CHECK(check("epsilon", a.spec.norm_epsilon, b.spec.norm_epsilon));
  MORACLE_CHECK(check.size("bias of the convolution", a.convolution_bias, b.convolution_bias));
  MORACLE_CHECK(check.matrix("input of Mamba-2", a.in, b.in));
  return check.matrix("output of Mamba-2", a.o, b.o);
}

Status compare(const Comparison&, const NoAttentionDescription&, const NoAttentionDescription&) {
  return {};
}

Status compare(const Comparison& check, const KimiDeltaDescription& a,
               const KimiDeltaDescription& b) {
  MORACLE_CHECK(check("heads", a.spec.num_heads, b.spec.num_heads));
  MORACLE_CHECK(check("head_dim", a.spec.head_dim, b.spec.head_dim));
  MORACLE_CHECK(check("taps of the convolution", a.spec.kernel, b.spec.kernel));
  MORACLE_CHECK(check("rank of decays", a.spec.rank, b.spec.rank));
  MORACLE_CHECK(check("lower bound of decays", a.spec.lower_bound, b.spec.lower_bound));
  MORACLE_CHECK(check("epsilon", a.spec.norm_epsilon, b.spec.norm_epsilon));
  return check.matrix("output of attention", a.o, b.o);
}

Status compare(const Comparison& check, const CompressedDescription& a,
               const CompressedDescription& b) {
  MORACLE_CHECK(check("heads", a.spec.num_heads, b.spec.num_heads));
  MORACLE_CHECK(check("head_dim", a.spec.head_dim, b.spec.head_dim));
  MORACLE_CHECK(check("window", a.spec.window, b.spec.window));
  MORACLE_CHECK(check("tokens of an entry", a.spec.rate, b.spec.rate));
  MORACLE_CHECK(check("entries that a token sees", a.spec.indexer.top_k, b.spec.indexer.top_k));
  MORACLE_CHECK(check("groups of the output", a.spec.num_groups, b.spec.num_groups));
  MORACLE_CHECK(check("epsilon", a.spec.norm_epsilon, b.spec.norm_epsilon));
  return check.matrix("output of attention", a.o_b, b.o_b);
}

Status compare(const Comparison& check, const LightningDescription& a,
               const LightningDescription& b) {
  MORACLE_CHECK(check("heads", a.spec.num_heads, b.spec.num_heads));
  MORACLE_CHECK(check("head_dim", a.spec.head_dim, b.spec.head_dim));
  MORACLE_CHECK(check("epsilon", a.spec.norm_epsilon, b.spec.norm_epsilon));
  return check.matrix("output of attention", a.o, b.o);
}

Status compare(const Comparison& check, const OutputStepsDescription& a,
               const OutputStepsDescription& b) {
  MORACLE_CHECK(check.size("norm of outputs", a.norm, b.norm));
  MORACLE_CHECK(check("scale of outputs", a.scale, b.scale));
  return check("scale of sums", a.sum_scale, b.sum_scale);
}

Status compare(const Comparison& check, const LayerDescription& a, const LayerDescription& b) {
  MORACLE_CHECK(check.size("norm before attention", a.input_norm, b.input_norm));
  MORACLE_CHECK(check.size("norm before the feed-forward", a.post_norm, b.post_norm));
  MORACLE_CHECK(check("parallel branches", a.parallel, b.parallel));
  MORACLE_CHECK(check("shortcut", a.shortcut, b.shortcut));
  MORACLE_CHECK(check("kind of attention", a.attention.index(), b.attention.index()));
  MORACLE_CHECK(std::visit(
      [&]<class T>(const T& attention) {
        return compare(check, attention, std::get<T>(b.attention));
      },
      a.attention));
  MORACLE_CHECK(check("router", a.router.has_value(), b.router.has_value()));
  if (a.router) {
    MORACLE_CHECK(check.matrix("router", a.router->weights, b.router->weights));
    MORACLE_CHECK(
        check.size("correction bias", a.router->correction_bias, b.router->correction_bias));
    MORACLE_CHECK(
        check.size("scales of experts", a.router->expert_scales, b.router->expert_scales));
    MORACLE_CHECK(check("identity experts", a.router->num_identity, b.router->num_identity));
    MORACLE_CHECK(check("experts by token id", a.router->by_token == b.router->by_token, true));
  }
  MORACLE_CHECK(check("feed-forward", a.mlp.has_value(), b.mlp.has_value()));
  if (a.mlp) MORACLE_CHECK(check.weights("feed-forward", *a.mlp, *b.mlp));
  MORACLE_CHECK(check("latent experts", a.latent.has_value(), b.latent.has_value()));
  if (a.latent) {
    MORACLE_CHECK(check.matrix("input of latent experts", a.latent->down, b.latent->down));
    MORACLE_CHECK(check.matrix("output of latent experts", a.latent->up, b.latent->up));
  }
  MORACLE_CHECK(check("shared expert", a.shared.has_value(), b.shared.has_value()));
  if (a.shared) {
    MORACLE_CHECK(check.weights("shared expert", a.shared->mlp, b.shared->mlp));
    MORACLE_CHECK(
        check("gate of the shared expert", a.shared->gate.has_value(), b.shared->gate.has_value()));
  }
  MORACLE_CHECK(compare(check, a.attention_output, b.attention_output));
  MORACLE_CHECK(compare(check, a.mlp_output, b.mlp_output));
  return check("experts beside an MLP", a.beside_mlp.has_value(), b.beside_mlp.has_value());
}

Status compare(const Comparison& check, const DecoderSpec& a, const DecoderSpec& b) {
  MORACLE_CHECK(check("hidden_size", a.hidden_size, b.hidden_size));
  MORACLE_CHECK(check("vocab_size", a.vocab_size, b.vocab_size));
  MORACLE_CHECK(check("context", a.max_context, b.max_context));
  MORACLE_CHECK(check("epsilon", a.norm_epsilon, b.norm_epsilon));
  if (a.activation != b.activation)
    return check.differ("activation function", name(a.activation), name(b.activation));
  MORACLE_CHECK(check("offset of norms", a.norm_offset, b.norm_offset));
  MORACLE_CHECK(check("LayerNorm", a.layer_norm, b.layer_norm));
  MORACLE_CHECK(check("residual stream behind norms", a.post_norm_residual, b.post_norm_residual));
  MORACLE_CHECK(check("scale of the embedding", a.embedding_scale, b.embedding_scale));
  MORACLE_CHECK(check("short context", a.short_context, b.short_context));
  MORACLE_CHECK(check("factor of short contexts", a.short_factor, b.short_factor));
  MORACLE_CHECK(check("factor of long contexts", a.long_factor, b.long_factor));
  return check("cap of logits", a.logit_cap, b.logit_cap);
}

}  // namespace
}  // namespace same_model

Status check_same_model(const Description& source, const Description& written,
                        std::string_view architecture, const std::string& file) {
  using namespace same_model;
  Comparison check(architecture, file);
  MORACLE_CHECK(compare(check, source.spec, written.spec));
  MORACLE_CHECK(check("layers", source.layers.size(), written.layers.size()));
  for (size_t layer = 0; layer < source.layers.size(); ++layer) {
    check.enter(str("layer ", layer));
    MORACLE_CHECK(compare(check, source.layers[layer], written.layers[layer]));
  }
  check.enter("");
  MORACLE_CHECK(check.size("final norm", source.final_norm, written.final_norm));
  MORACLE_CHECK(check.matrix("output", source.output, written.output));
  return check("tied embeddings", source.tied, written.tied);
}

}  // namespace moracle
