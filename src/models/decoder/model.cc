// Runs a decoder: the same steps for every architecture.
#include "moracle/model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "models/decoder/check_steps.h"
#include "models/decoder/residual_stream.h"
#include "placement/policy.h"

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
const std::optional<ResidencyPlan>& Model::residency() const {
  return state_->residency;
}

Result<RoutingStatistics> Model::routing_statistics() const {
  const State& m = *state_;
  if (!m.activations.feed_forward.count_tokens) {
    return Error{ErrorKind::kInvalidArgument, "", "routing statistics",
                 "a model loaded with count_routing", "it was loaded without"};
  }
  const DeviceLock lock = m.workspace->device().lock();
  RoutingStatistics statistics{m.architecture, m.num_layers, {}, ""};
  for (size_t l = 0; l < m.layers.size(); ++l) {
    const MoeStage& routed = m.layers[l].feed_forward.routed;
    if (routed.has_router())
      statistics.tokens[static_cast<int64_t>(l)] = routed.tokens_per_expert();
  }
  return statistics;
}

PlacementCounts Model::placement_counts() const {
  const DeviceLock lock = state_->workspace->device().lock();
  PlacementCounts all;
  for (const Layer& layer : state_->layers) {
    const PlacedMoe* const placed = layer.feed_forward.routed.placed();
    if (placed == nullptr) continue;
    const PlacementCounts one = placed->counts();
    all.hits += one.hits;
    all.misses += one.misses;
    all.moves += one.moves;
    all.bytes_moved += one.bytes_moved;
    all.streamed_calls += one.streamed_calls;
    all.bytes_streamed += one.bytes_streamed;
    all.reads += one.reads;
    all.bytes_read += one.bytes_read;
    all.hits_of_devices.resize(one.hits_of_devices.size());
    for (size_t d = 0; d < one.hits_of_devices.size(); ++d)
      all.hits_of_devices[d] += one.hits_of_devices[d];
  }
  all.steps_us = state_->placed_steps_us;
  if (state_->recorded.devices) state_->recorded.devices->add_waits(all);
  return all;
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
    return Error{ErrorKind::kUnsupported, "", "shared pages", "a model without LongRoPE",
                 "its pages depend on the length of the sequence"};
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
Status fill_batch(Model::State& m, std::span<const Model::Step> steps, Stream stream) {
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

// Enqueues all layers for the batch's tokens, final norm included.
Status enqueue_layers(Model::State& m, const Batch& batch, Stream stream) {
  Ops& ops = kernel_device(m.workspace->device()).ops();
  ResidualStream residual(m, batch, stream);
  FeedForwardScratch feed_forward = m.activations.feed_forward;
  feed_forward.token_ids = batch.ids;
  MORACLE_CHECK(residual.embed(batch.ids));
  if (m.join) MORACLE_CHECK(residual.join());
  for (size_t l = 0; l < m.layers.size(); ++l) {
    Layer& layer = m.layers[l];
    const auto index = static_cast<int64_t>(l);
    if (layer.attention != nullptr) {
      MORACLE_TRY(const LayerInput input, residual.attention_input(layer, index));
      MORACLE_CHECK(layer.attention->apply(
          input, residual.branch(),
          {ops, batch, layer.cache, m.batch_invariant, m.bf16_attention, m.activations.attention,
           m.activations.selected, stream, m.observer}));
      if (m.tp_size > 1) MORACLE_CHECK(m.exchange->all_reduce(residual.branch(), stream));
      m.observer.done(StepPart::kAttention);
      MORACLE_CHECK(residual.finish_branch(layer.attention_output, StepOutput::kAttention, index));
    }
    if (!layer.feed_forward.routed.loaded()) continue;
    MORACLE_TRY(LayerInput post, residual.feed_forward_input(layer, index));
    MORACLE_CHECK(layer.feed_forward.apply(std::move(post), residual.hidden(), residual.branch(),
                                           feed_forward, ops, stream, m.observer));
    const bool routed = layer.feed_forward.routed.has_router();
    MORACLE_CHECK(residual.finish_branch(layer.mlp_output,
                                         routed ? StepOutput::kExperts : StepOutput::kMlp, index));
  }
  return residual.final_norm();
}

// Lets experts move into slots after a step.
Status move_experts(Model::State& m, Stream stream) {
  // With moves, a token's bits would depend on earlier steps.
  if (m.batch_invariant || m.recorded.devices == nullptr) return {};
  MORACLE_TRY(const int64_t moves, m.recorded.devices->move(kMostMoves, stream));
  static_cast<void>(moves);
  return {};
}

// Where ranks have their own tokens: waits until every rank begins this step.
Status begin_step(Model::State& m, size_t num_tokens) {
  if (m.dispatch != nullptr)
    MORACLE_CHECK(m.dispatch->begin(static_cast<int64_t>(num_tokens), false));
  return {};
}

// A step of a rank without tokens: its experts run for the other ranks' tokens.
Status enqueue_experts(Model::State& m, Stream stream) {
  const Activations& a = m.activations;
  for (Layer& layer : m.layers) {
    if (layer.feed_forward.routed.has_router())
      MORACLE_CHECK(
          layer.feed_forward.run_experts_of_others(a.normed, a.branch, a.feed_forward, stream));
  }
  return {};
}

// LongRoPE: the frequencies of all keys of a sequence depend on its length after this step. If the
// step changes them, recomputes the sequence. After an error the keys are mixed, and the next step
// recomputes them.
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
    const Model::Step chunk{all.subspan(cache.length, count), step.cache, step.adapter};
    done = fill_batch(m, {&chunk, 1}, stream);
    if (done) done = begin_step(m, chunk.tokens.size());
    if (done) done = enqueue_layers(m, m.batch.batch(), stream);
    // The next chunk overwrites the tables that this one reads.
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
  const DeviceLock lock = m.workspace->device().lock();
  MORACLE_CHECK(check_steps(steps, m));
  const Stream stream;
  const auto start = std::chrono::steady_clock::now();
  const auto run = [&]() -> Status {
    for (const Step& step : steps) {
      if (m.spec.short_context == 0 || step.tokens.empty()) continue;
      MORACLE_CHECK(fit_keys(m, step, stream));
    }
    MORACLE_CHECK(fill_batch(m, steps, stream));
    const Batch& batch = m.batch.batch();
    m.num_rows = batch.num_tokens;
    MORACLE_CHECK(begin_step(m, batch.num_tokens));
    if (batch.num_tokens == 0) return m.dispatch ? enqueue_experts(m, stream) : Status();
    const auto enqueue = [&] { return enqueue_layers(m, batch, stream); };
    Device& device = m.workspace->device();
    // Timing or inspecting parts requires enqueueing them one by one. Transfers of experts are no
    // part of a graph.
    if (m.observer.watches() || way_of(m.call_ways, batch.num_tokens) != CallWay::kDivided) {
      MORACLE_CHECK(enqueue());
    } else {
      MORACLE_CHECK(m.recorded.run(batch, device, stream, enqueue,
                                   m.dispatch ? m.dispatch->most_tokens() : 0));
    }
    MORACLE_CHECK(move_experts(m, stream));
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
  m.placed_steps_us +=
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
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
  const DeviceLock lock = m.workspace->device().lock();
  for (;;) {
    MORACLE_TRY(const bool goes_on, m.dispatch->begin(0, true));
    if (!goes_on) return m.workspace->device().synchronize();
    MORACLE_CHECK(enqueue_experts(m, {}));
  }
}

}  // namespace moracle
