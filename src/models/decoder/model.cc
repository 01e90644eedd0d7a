// Runs a decoder from its Description: the same walk for every architecture.
#include "moracle/model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "models/decoder/check_steps.h"
#include "models/decoder/model_state.h"

namespace moracle {

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;
KvCache::KvCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

int64_t KvCache::length() const {
  return state_->length;
}
int64_t KvCache::capacity() const {
  return state_->capacity;
}
Status KvCache::truncate(int64_t length) {
  const int64_t to = std::clamp<int64_t>(length, 0, state_->length);
  MORACLE_CHECK(state_->recurrent.truncate(state_->length, to));
  state_->length = to;
  if (!state_->tokens.empty()) state_->tokens.resize(static_cast<size_t>(to));
  state_->pool->shrink(state_->pages, to);
  return {};
}

int64_t Model::vocab_size() const {
  return state_->spec.vocab_size;
}
int64_t Model::max_context() const {
  return state_->spec.max_context;
}
int64_t Model::max_num_tokens() const {
  return state_->max_num_tokens;
}
Device& Model::device() const {
  return state_->workspace->device();
}
int64_t Model::weight_bytes() const {
  return state_->weight_bytes;
}
const std::shared_ptr<Group>& Model::group() const {
  return state_->group;
}
const std::vector<Choice>& Model::choices() const {
  return state_->choices;
}

Result<RoutingStatistics> Model::routing_statistics() const {
  const State& m = *state_;
  if (!m.activations.feed_forward.count_tokens) {
    return Error{ErrorKind::kInvalidArgument, "", "routing statistics",
                 "a model loaded with count_routing", "it was loaded without"};
  }
  const Turn turn = m.workspace->device().turn();
  RoutingStatistics statistics{m.architecture, m.layers_of_checkpoint, {}, ""};
  for (size_t l = 0; l < m.layers.size(); ++l) {
    const MoeStage& routed = m.layers[l].feed_forward.routed;
    if (routed.has_router())
      statistics.tokens[static_cast<int64_t>(l)] = routed.tokens_per_expert();
  }
  return statistics;
}

Result<KvCache> Model::make_cache(int64_t capacity) const {
  const DecoderSpec& spec = state_->spec;
  if (capacity < 1 || capacity > spec.max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "context",
                 str("1 to ", spec.max_context, " tokens"), str("the request is ", capacity)};
  }
  auto cache = std::make_unique<KvCache::State>(state_->state_pool);
  cache->capacity = capacity;
  cache->pool = state_->cache_pool;
  return KvCache(std::move(cache));
}

Result<KvCache> ModelAccess::make_cache(const Model& model, int64_t capacity,
                                        std::span<std::byte* const> pages) {
  MORACLE_TRY(KvCache cache, model.make_cache(capacity));
  KvCache::State& state = *cache.state_;
  if (!pages.empty() && !can_share_pages(model)) {
    return Error{ErrorKind::kUnsupported, "", "shared pages",
                 "a model without recurrent layers and LongRoPE",
                 "its pages do not hold all of a sequence, or depend on its length"};
  }
  for (std::byte* const page : pages) {
    state.pages.push_back(page);
    state.pool->share(page);
  }
  state.length = static_cast<int64_t>(pages.size()) * state.pool->page();
  return cache;
}

namespace {

// Takes the pages that a step needs and uploads its tables to the device.
Status place(Model::State& m, std::span<const Model::Step> steps, Stream stream) {
  std::vector<SequenceTokens> sequences;
  m.lora_ids.clear();
  for (const Model::Step& step : steps) {
    KvCache::State& cache = ModelAccess::state(*step.cache);
    const auto count = static_cast<int64_t>(step.tokens.size());
    MORACLE_CHECK(m.cache_pool->grow(cache.pages, cache.length + count));
    if (count > 0) MORACLE_CHECK(cache.recurrent.begin_step());
    const bool is_long = cache.keys == KvCache::State::Keys::kLong;
    sequences.push_back({step.tokens, cache.length, cache.pages, is_long,
                         is_long ? m.spec.long_factor : m.spec.short_factor,
                         cache.recurrent.before(), cache.recurrent.after()});
    m.lora_ids.insert(m.lora_ids.end(), count, step.adapter);
  }
  Device& device = m.workspace->device();
  MORACLE_CHECK(m.batch.fill(sequences, m.cache_pool->page(), device, stream));
  if (m.batch.moved()) m.recorded.forget();
  if (m.num_adapters == 0) return {};
  return device.enqueue_upload(m.activations.feed_forward.lora_ids, m.lora_ids.data(),
                               m.lora_ids.size() * sizeof(int32_t), stream);
}

// The norm of whole rows; `weight` as LayerDescription holds it.
Status norm(const Model::State& m, const Matrix& x, const Buffer& weight, const Matrix& out,
            Stream stream) {
  Ops& ops = kernel_device(m.workspace->device()).ops();
  const auto* const weights = weight.as<float>();
  if (!m.spec.layer_norm) return ops.rms_norm(x, weights, x.cols, m.spec.norm_epsilon, out, stream);
  return ops.layer_norm(x, weights, weights + x.cols, m.spec.norm_epsilon, out, stream);
}
// x += y, then the norm of x.
Status add_and_normalize(const Model::State& m, const Matrix& x, const Matrix& y,
                         const Buffer& weight, const Matrix& out, Stream stream) {
  Ops& ops = kernel_device(m.workspace->device()).ops();
  if (!m.spec.layer_norm)
    return ops.add_rms_norm(x, y, weight.as<float>(), m.spec.norm_epsilon, out, stream);
  MORACLE_CHECK(ops.add(x, y, stream));
  return norm(m, x, weight, out, stream);
}

// Enqueues all layers for the batch's tokens, final norm included.
Status enqueue_layers(Model::State& m, const Batch& batch, Stream stream) {
  Ops& ops = kernel_device(m.workspace->device()).ops();
  Matrix hidden = m.activations.hidden.slice(0, batch.num_tokens);
  const Matrix normed = m.activations.normed.slice(0, batch.num_tokens),
               added = m.activations.added.slice(0, batch.num_tokens);
  MORACLE_CHECK(ops.embed(m.embedding, batch.ids, hidden, stream));
  if (m.embedding_scales.bytes() > 0) {
    MORACLE_CHECK(ops.scale_rows(hidden, m.embedding_scales.as<float>(), hidden, stream));
  }
  m.observer.done(StepPart::kEmbedding);
  MORACLE_CHECK(m.observer.show(StepOutput::kEmbedding, -1, hidden));
  MORACLE_CHECK(norm(m, hidden, m.layers.front().input_norm, normed, stream));
  m.observer.done(StepPart::kNorms);
  MORACLE_CHECK(m.observer.show(StepOutput::kInputNorm, 0, normed));
  // Adds the last output of layer `index` to the residual, then applies the next norm, which
  // belongs to `layer`.
  const auto add_and_norm = [&](const Buffer& weight, int64_t index, StepOutput output,
                                int64_t layer) -> Status {
    MORACLE_CHECK(add_and_normalize(m, hidden, added, weight, normed, stream));
    m.observer.done(StepPart::kNorms);
    MORACLE_CHECK(m.observer.show(StepOutput::kResidualSum, index, hidden));
    return m.observer.show(output, layer, normed);
  };
  // Kernels that start with a norm know RMSNorm, and store no output to look at.
  const bool apart = m.observer.on_output || m.spec.layer_norm;
  // What a part of the layer gives, before it is added to the residual.
  const auto finish_output = [&](const Buffer& weight) -> Status {
    if (weight.bytes() > 0) MORACLE_CHECK(norm(m, added, weight, added, stream));
    if (m.residual_scales.bytes() == 0) return {};
    return ops.scale_rows(added, m.residual_scales.as<float>(), added, stream);
  };
  // The next attention may compute its norm by itself, unless an observer needs the norm's output.
  std::optional<NormedInput> pending;
  Matrix hidden_too = m.activations.hidden_too;
  const auto leave_to_attention = [&](const Layer& layer) {
    if (apart || batch.num_tokens > hidden_too.rows) return false;
    pending = {{hidden, added, layer.input_norm.as<float>(), m.spec.norm_epsilon, normed},
               hidden_too.slice(0, batch.num_tokens)};
    if (!layer.attention->starts_with_norm(*pending)) pending.reset();
    return pending.has_value();
  };
  for (size_t l = 0; l < m.layers.size(); ++l) {
    Layer& layer = m.layers[l];
    const auto index = static_cast<int64_t>(l);
    MORACLE_CHECK(layer.attention->apply(
        normed, added,
        {ops, batch, layer.cache, m.batch_invariant, m.bf16_attention, m.activations.attention,
         stream, m.observer, pending ? &*pending : nullptr}));
    if (pending) {
      hidden_too = std::exchange(hidden, pending->sum);
      pending.reset();
    }
    if (m.tp_size > 1) MORACLE_CHECK(m.exchange->all_reduce(added, stream));
    m.observer.done(StepPart::kAttention);
    MORACLE_CHECK(finish_output(layer.attention_output_norm));
    MORACLE_CHECK(m.observer.show(StepOutput::kAttention, index, added));
    // The router starts with the norm, unless an observer needs the norm's output or the router
    // reads the residual.
    const bool norm_apart = apart || layer.feed_forward.reads_residual();
    const AddRmsNorm post_norm{hidden, added, layer.post_norm.as<float>(), m.spec.norm_epsilon,
                               normed};
    if (norm_apart)
      MORACLE_CHECK(add_and_norm(layer.post_norm, index, StepOutput::kPostNorm, index));
    MORACLE_CHECK(layer.feed_forward.apply(normed, added, m.activations.feed_forward, ops, stream,
                                           m.observer, norm_apart ? nullptr : &post_norm, hidden));
    MORACLE_CHECK(finish_output(layer.mlp_output_norm));
    if (layer.output_scales.bytes() > 0) {
      const auto* const scales = layer.output_scales.as<float>();
      for (const Matrix& sum : {hidden, added})
        MORACLE_CHECK(ops.scale_rows(sum, scales, sum, stream));
    }
    const bool routed = layer.feed_forward.routed.has_router();
    MORACLE_CHECK(m.observer.show(routed ? StepOutput::kExperts : StepOutput::kMlp, index, added));
    if (l + 1 == m.layers.size())
      return add_and_norm(m.final_norm, index, StepOutput::kFinalNorm, -1);
    if (leave_to_attention(m.layers[l + 1])) continue;
    MORACLE_CHECK(
        add_and_norm(m.layers[l + 1].input_norm, index, StepOutput::kInputNorm, index + 1));
  }
  return {};
}

// Waits for ranks that have tokens of their own: each step is one of all ranks.
Status begin_step(Model::State& m, size_t num_tokens) {
  if (m.dispatch != nullptr)
    MORACLE_CHECK(m.dispatch->begin_step(static_cast<int64_t>(num_tokens), false));
  return {};
}

// The part of a rank without tokens in a step: experts, for the other ranks' tokens.
Status enqueue_experts(Model::State& m, Stream stream) {
  const Matrix normed = m.activations.normed.slice(0, 0), added = m.activations.added.slice(0, 0);
  for (Layer& layer : m.layers) {
    MoeStage& routed = layer.feed_forward.routed;
    if (routed.has_router())
      MORACLE_CHECK(routed.run_experts(normed, added, m.activations.feed_forward, stream));
  }
  return {};
}

// With LongRoPE: makes the keys of a sequence those of the length that it has after `added` more
// tokens. Where that changes them, the sequence is computed anew. If that fails, it stays mixed and
// the next step starts over.
Status fit_keys(Model::State& m, const Model::Step& step, Stream stream) {
  using Keys = KvCache::State::Keys;
  KvCache::State& cache = ModelAccess::state(*step.cache);
  const auto added = static_cast<int64_t>(step.tokens.size());
  const int64_t length = cache.length;
  const Keys keys = length + added > m.spec.short_context ? Keys::kLong : Keys::kShort;
  const Keys before = std::exchange(cache.keys, keys);
  if (before == keys || length == 0) return {};
  const std::span<const int32_t> all = cache.tokens;
  cache.length = 0;
  Status done;
  while (done && cache.length < length) {
    const int64_t count = std::min(m.max_num_tokens, length - cache.length);
    const Model::Step part{all.subspan(cache.length, count), step.cache, step.adapter};
    done = place(m, {&part, 1}, stream);
    if (done) done = begin_step(m, part.tokens.size());
    if (done) done = enqueue_layers(m, m.batch.batch(), stream);
    // The next part overwrites the tables that this one reads.
    if (done) done = m.workspace->device().synchronize(stream);
    cache.length += count;
  }
  cache.length = length;
  if (!done) cache.keys = Keys::kMixed;
  return done;
}

}  // namespace

Status Model::forward(std::span<const Step> steps) {
  State& m = *state_;
  const Turn turn = m.workspace->device().turn();
  MORACLE_CHECK(check_steps(steps, m));
  const Stream stream;
  const auto run = [&]() -> Status {
    for (const Step& step : steps) {
      if (m.spec.short_context == 0 || step.tokens.empty()) continue;
      MORACLE_CHECK(fit_keys(m, step, stream));
    }
    MORACLE_CHECK(place(m, steps, stream));
    const Batch& batch = m.batch.batch();
    m.num_rows = batch.num_tokens;
    MORACLE_CHECK(begin_step(m, batch.num_tokens));
    if (batch.num_tokens == 0) return m.dispatch ? enqueue_experts(m, stream) : Status();
    const auto enqueue = [&] { return enqueue_layers(m, batch, stream); };
    Device& device = m.workspace->device();
    // Timing or inspecting parts requires enqueueing them one by one.
    if (m.observer.watches()) {
      MORACLE_CHECK(enqueue());
    } else {
      MORACLE_CHECK(m.recorded.run(batch, device, stream, enqueue,
                                   m.dispatch ? m.dispatch->most_tokens() : 0));
    }
    // Appending keys detects values that f16 cannot hold. On a device that enqueues work, the error
    // appears only at synchronization.
    if (m.cache_dtype == DType::kF16 && !device.host_visible()) return device.synchronize(stream);
    return {};
  };
  if (const Status done = or_out_of_memory("forward", run); !done) {
    m.num_rows = 0;
    for (const Step& step : steps) {
      KvCache::State& cache = *step.cache->state_;
      cache.pool->shrink(cache.pages, cache.length);
    }
    return done;
  }
  for (const Step& step : steps) {
    if (step.tokens.empty()) continue;
    KvCache::State& cache = *step.cache->state_;
    cache.recurrent.end_step(cache.length);
    cache.length += static_cast<int64_t>(step.tokens.size());
    if (m.spec.short_context > 0)
      cache.tokens.insert(cache.tokens.end(), step.tokens.begin(), step.tokens.end());
  }
  return {};
}

Status Model::rest() {
  State& m = *state_;
  if (m.dispatch == nullptr) return {};
  const Turn turn = m.workspace->device().turn();
  for (;;) {
    MORACLE_TRY(const bool goes_on, m.dispatch->begin_step(0, true));
    if (!goes_on) return m.workspace->device().synchronize();
    MORACLE_CHECK(enqueue_experts(m, {}));
  }
}

}  // namespace moracle
