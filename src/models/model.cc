// A decoder from its Description: the same walk for every architecture.
#include "moracle/model.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "models/model_state.h"

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
void KvCache::truncate(int64_t length) {
  state_->length = std::clamp<int64_t>(length, 0, state_->length);
  state_->pool->shrink(state_->pages, state_->length);
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
int64_t Model::weight_bytes() const {
  return state_->weight_bytes;
}
const std::vector<Choice>& Model::choices() const {
  return state_->choices;
}

Result<KvCache> Model::make_cache(int64_t capacity) const {
  const DecoderSpec& spec = state_->spec;
  if (capacity < 1 || capacity > spec.max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "context",
                 str("1 to ", spec.max_context, " tokens"), str(capacity, " were asked for")};
  }
  auto cache = std::make_unique<KvCache::State>();
  cache->capacity = capacity;
  cache->dtype = state_->cache_dtype;
  cache->pool = state_->cache_pool;
  return KvCache(std::move(cache));
}

namespace {

Status check_steps(std::span<const Model::Step> steps, const DecoderSpec& spec,
                   int64_t max_num_tokens, int64_t num_adapters, DType cache_dtype) {
  int64_t total = 0;
  for (const Model::Step& step : steps) {
    const auto count = static_cast<int64_t>(step.tokens.size());
    total += count;
    if (step.cache->length() + count > step.cache->capacity()) {
      return Error{ErrorKind::kInvalidArgument, "", "context",
                   str("room for ", count, " more tokens"),
                   str("the cache holds ", step.cache->length(), " of ", step.cache->capacity())};
    }
    if (ModelDoor::state(*step.cache).dtype != cache_dtype) {
      return Error{ErrorKind::kInvalidArgument, "", "cache",
                   str("one that this model made, of ", name(cache_dtype)),
                   str("it is of ", name(ModelDoor::state(*step.cache).dtype))};
    }
    if (step.adapter < -1 || step.adapter >= num_adapters) {
      return Error{ErrorKind::kInvalidArgument, "", "adapter",
                   num_adapters == 0 ? "-1, as the model has no adapters"
                                     : str("-1, or one from 0 to ", num_adapters - 1),
                   str("it is ", step.adapter)};
    }
    for (int32_t id : step.tokens) {
      if (id >= 0 && id < spec.vocab_size) continue;
      return Error{ErrorKind::kInvalidArgument, "", "token id", str("0 to ", spec.vocab_size - 1),
                   str("it is ", id)};
    }
  }
  if (total <= max_num_tokens) return {};
  return Error{ErrorKind::kInvalidArgument, "", "step", str("at most ", max_num_tokens, " tokens"),
               str("there are ", total)};
}

}  // namespace

namespace {

// The pages that a step needs, and its tables on the device.
Status place(Model::State& m, std::span<const Model::Step> steps, Stream stream) {
  std::vector<SequenceTokens> sequences;
  m.lora_ids.clear();
  for (const Model::Step& step : steps) {
    KvCache::State& cache = ModelDoor::state(*step.cache);
    const auto count = static_cast<int64_t>(step.tokens.size());
    MORACLE_CHECK(m.cache_pool->grow(cache.pages, cache.length + count));
    sequences.push_back({step.tokens, cache.length, cache.pages});
    m.lora_ids.insert(m.lora_ids.end(), count, step.adapter);
  }
  Device& device = m.workspace->device();
  MORACLE_CHECK(m.batch.fill(sequences, m.cache_pool->page(), device, stream));
  if (m.batch.moved()) m.recorded.forget();
  if (m.num_adapters == 0) return {};
  return device.enqueue_upload(m.activations.feed_forward.lora_ids, m.lora_ids.data(),
                               m.lora_ids.size() * sizeof(int32_t), stream);
}

// All layers over the tokens of the batch, the last norm included.
Status enqueue_layers(Model::State& m, const Batch& batch, Stream stream) {
  const DecoderSpec& spec = m.spec;
  Ops& ops = m.workspace->device().ops();
  const Matrix hidden = m.activations.hidden.slice(0, batch.num_tokens),
               normed = m.activations.normed.slice(0, batch.num_tokens),
               added = m.activations.added.slice(0, batch.num_tokens);
  MORACLE_CHECK(ops.embed(m.embedding, batch.ids, hidden, stream));
  part_done(m.on_part, "embedding");
  MORACLE_CHECK(ops.rms_norm(hidden, m.layers.front().input_norm.as<float>(), spec.hidden_size,
                             spec.norm_epsilon, normed, stream));
  part_done(m.on_part, "norms");
  const auto add_and_norm = [&](const Buffer& weight) {
    return ops.add_rms_norm(hidden, added, weight.as<float>(), spec.norm_epsilon, normed, stream);
  };
  for (size_t l = 0; l < m.layers.size(); ++l) {
    Layer& layer = m.layers[l];
    MORACLE_CHECK(layer.attention->apply(
        normed, added,
        {ops, batch, layer.cache, m.alone, m.activations.attention, stream, m.on_part}));
    part_done(m.on_part, "attention");
    MORACLE_CHECK(add_and_norm(layer.post_norm));
    part_done(m.on_part, "norms");
    MORACLE_CHECK(layer.feed_forward.apply(normed, added, m.activations.feed_forward, ops, stream,
                                           m.on_part));
    const bool is_last = l + 1 == m.layers.size();
    MORACLE_CHECK(add_and_norm(is_last ? m.final_norm : m.layers[l + 1].input_norm));
    part_done(m.on_part, "norms");
  }
  return {};
}

}  // namespace

Status Model::forward(std::span<const Step> steps) {
  State& m = *state_;
  MORACLE_CHECK(check_steps(steps, m.spec, m.max_num_tokens, m.num_adapters, m.cache_dtype));
  const Stream stream;
  const auto run = [&]() -> Status {
    MORACLE_CHECK(place(m, steps, stream));
    const Batch& batch = m.batch.batch();
    m.num_rows = batch.num_tokens;
    if (batch.num_tokens == 0) return {};
    const auto enqueue = [&] { return enqueue_layers(m, batch, stream); };
    Device& device = m.workspace->device();
    // Parts can be told apart only where they are enqueued one by one.
    if (m.on_part) {
      MORACLE_CHECK(enqueue());
    } else {
      MORACLE_CHECK(m.recorded.run(batch, device, stream, enqueue));
    }
    // What f16 cannot hold is found while keys are appended: later where work is enqueued.
    if (m.cache_dtype == DType::kF16 && !device.host_visible()) return device.synchronize(stream);
    return {};
  };
  if (const Status done = run(); !done) {
    for (const Step& step : steps) step.cache->truncate(step.cache->length());
    return done;
  }
  for (const Step& step : steps)
    step.cache->state_->length += static_cast<int64_t>(step.tokens.size());
  return {};
}

namespace {

static_assert(Model::kMaxLargest == kMostLargest);

// Logits of the last step's tokens [first, first + count), where they are computed.
Result<Matrix> enqueue_logits(Model::State& m, int64_t first, int64_t count) {
  if (first < 0 || count < 1 || count > Model::kMaxLogitRows || first + count > m.num_rows) {
    return Error{ErrorKind::kInvalidArgument, "", "logits",
                 str("1 to ", Model::kMaxLogitRows, " rows of the last step's ", m.num_rows),
                 str(count, " from ", first, " were asked for")};
  }
  const Matrix out = m.activations.logits.slice(0, count);
  MORACLE_CHECK(m.output->apply(m.activations.normed.slice(first, count), out));
  part_done(m.on_part, "output");
  return out;
}

// What the host reads: the device's own memory where it can, or else a copy, `at` bytes into the
// room for these.
Result<const std::byte*> on_host(Model::State& m, const void* data, size_t bytes, size_t at) {
  Device& device = m.workspace->device();
  if (device.host_visible()) return static_cast<const std::byte*>(data);
  auto* const to = m.host_logits.as<std::byte>() + at;
  MORACLE_CHECK(device.download(to, data, bytes));
  return to;
}
Status make_host_room(Model::State& m, size_t bytes) {
  Device& device = m.workspace->device();
  if (device.host_visible() || m.host_logits.bytes() >= bytes) return {};
  m.host_logits = Buffer();
  MORACLE_TRY(m.host_logits, device.allocate_host(bytes));
  return {};
}

}  // namespace

Result<std::span<const float>> Model::logits(int64_t first, int64_t count) {
  State& m = *state_;
  MORACLE_TRY(const Matrix out, enqueue_logits(m, first, count));
  const auto values = static_cast<size_t>(count * m.spec.vocab_size);
  MORACLE_CHECK(make_host_room(m, values * sizeof(float)));
  MORACLE_TRY(const std::byte* const host, on_host(m, out.data, values * sizeof(float), 0));
  MORACLE_CHECK(m.workspace->device().synchronize());
  return std::span(reinterpret_cast<const float*>(host), values);
}

Result<Model::LargestLogits> Model::largest_logits(int64_t first, int64_t count, int64_t k) {
  State& m = *state_;
  Device& device = m.workspace->device();
  MORACLE_TRY(const Matrix out, enqueue_logits(m, first, count));
  const Activations& a = m.activations;
  MORACLE_CHECK(
      device.ops().find_largest(out, k, a.largest_ids, a.largest, a.largest_room, Stream()));
  const auto values = static_cast<size_t>(count * k);
  const size_t bytes = values * sizeof(float);
  MORACLE_CHECK(make_host_room(m, 2 * bytes));
  MORACLE_TRY(const std::byte* const ids, on_host(m, a.largest_ids, bytes, 0));
  MORACLE_TRY(const std::byte* const logits, on_host(m, a.largest, bytes, bytes));
  MORACLE_CHECK(device.synchronize());
  return LargestLogits{{reinterpret_cast<const int32_t*>(ids), values},
                       {reinterpret_cast<const float*>(logits), values}};
}

}  // namespace moracle
