#include "bench/model.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <set>

#include "base/median.h"
#include "base/scalar.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "bench/bench.h"
#include "bench/predict.h"
#include "bench/random_model.h"
#include "kernels/ops.h"
#include "models/decoder/model_state.h"
#include "models/generation/sampler.h"
#include "placement/trace.h"

namespace moracle::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The parts of a step in order, with the parts of layers first.
constexpr std::string_view kParts[] = {"norms",   "attention linears", "attention", "router",
                                       "experts", "shared expert",     "embedding", "output",
                                       "sampling"};
constexpr size_t kNumParts = std::size(kParts), kPerLayer = 6;

// Times each part of a step with the device's clock. No work waits for the timing.
class PartClock {
 public:
  explicit PartClock(std::unique_ptr<Timeline> timeline) : timeline_(std::move(timeline)) {}
  void start() {
    us_ = {};
    ended_.clear();
    mark();
  }
  void end(std::string_view part) {
    ended_.push_back(std::find(std::begin(kParts), std::end(kParts), part) - std::begin(kParts));
    mark();
  }
  /// Returns the time of the whole step. Afterwards us() gives the times of its parts.
  Result<double> finish() {
    MORACLE_CHECK(marked_);
    MORACLE_TRY(const std::vector<double> spent, timeline_->take());
    double all = 0;
    for (size_t i = 0; i < spent.size(); ++i) us_[ended_[i]] += spent[i], all += spent[i];
    return all;
  }
  const std::array<double, kNumParts + 1>& us() const { return us_; }

 private:
  void mark() {
    if (marked_.ok()) marked_ = timeline_->mark();
  }
  std::unique_ptr<Timeline> timeline_;
  Status marked_;
  std::vector<size_t> ended_;
  std::array<double, kNumParts + 1> us_{};  // last entry: parts without a name in kParts
};

Error cancelled() {
  return {ErrorKind::kCancelled, "", "bench", "", "stopped on request"};
}

// An element of the cache; codes have a scale of kCodeScale.
constexpr float kCodeScale = 1.0f / 32;
void store_element(DType dtype, float value, std::byte* to) {
  const auto put = [&](const auto& bits) { std::memcpy(to, &bits, sizeof bits); };
  switch (dtype) {
    case DType::kF16:
      return put(float_to_f16(value));
    case DType::kBF16:
      return put(float_to_bf16(value));
    case DType::kF8E4M3:
      return put(float_to_e4m3(value));
    case DType::kI8:
      return put(static_cast<int8_t>(std::clamp(value / kCodeScale, -127.0f, 127.0f)));
    default:
      return put(value);
  }
}

// Fills the scales of a layer in a page.
Status fill_scales(const LayerCache& layer, std::byte* page, int64_t positions, Device& device) {
  if (layer.dtype != DType::kI8) return {};
  const std::vector<float> scales(layer.num_heads * positions, kCodeScale);
  for (const int64_t at : {layer.key_scales, layer.value_scales})
    MORACLE_CHECK(device.upload(page + at, scales.data(), scales.size() * sizeof(float)));
  return {};
}

// Fills the cache with random keys and values at every position: attention reads them without
// computing them first. Sequences with the same content would be routed alike, so `seed` differs
// between them.
Status fill(KvCache::State& cache, const Model::State& model, int64_t length, uint64_t seed,
            Device& device, const Progress& progress) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  constexpr size_t kElements = 1 << 16;
  const auto element = static_cast<size_t>(bits(model.cache_dtype) / 8);
  std::vector<std::byte> some(kElements * element);
  for (size_t i = 0; i < kElements; ++i)
    store_element(model.cache_dtype, normal(engine), some.data() + i * element);
  MORACLE_CHECK(cache.pool->grow(cache.pages, length));
  const size_t whole = some.size();
  for (std::byte* page : cache.pages) {
    if (progress && !progress(0, 0)) return cancelled();
    for (size_t at = 0; at < cache.pool->page_bytes(); at += whole) {
      MORACLE_CHECK(
          device.upload(page + at, some.data(), std::min(whole, cache.pool->page_bytes() - at)));
    }
    for (const Layer& layer : model.layers)
      MORACLE_CHECK(fill_scales(layer.cache, page, cache.pool->page(), device));
  }
  cache.length = length;
  return device.synchronize();
}

// Draws tokens of the vocabulary, all equally likely. Equal tokens would be routed alike, and
// decoding many sequences would touch the experts of one.
class RandomTokens {
 public:
  RandomTokens(int64_t vocab_size, uint64_t seed)
      : engine_(seed), ids_(0, static_cast<int32_t>(vocab_size) - 1) {}
  std::vector<int32_t> take(int64_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = ids_(engine_);
    return tokens;
  }

 private:
  std::mt19937_64 engine_;
  std::uniform_int_distribution<int32_t> ids_;
};

// Returns the number of experts that the last layer's router chose for the last `tokens` tokens.
Result<int64_t> experts_touched(const Model::State& model, int64_t tokens, int64_t top_k) {
  Device& device = model.workspace->device();
  std::vector<int32_t> ids(tokens * top_k);
  MORACLE_CHECK(device.download(ids.data(), model.activations.feed_forward.topk_ids,
                                ids.size() * sizeof(int32_t)));
  MORACLE_CHECK(device.synchronize());
  return static_cast<int64_t>(std::set<int32_t>(ids.begin(), ids.end()).size());
}

// An offset for seeds: with dispatch each rank has its own sequences, else every rank returns 0.
int64_t own_sequences(const ModelOptions& options) {
  return options.spread == Spread::kDispatched ? options.parallel.ep_rank : 0;
}

// Decodes one token of each sequence at a time, always with the same number of tokens before it.
class Decoder {
 public:
  Decoder(Model& model, std::vector<KvCache> caches, const DecodeOptions& options,
          const SamplingOptions& sampling, const RoutingTrace& trace, int64_t top_k,
          std::unique_ptr<Timeline> timeline)
      : model_(model),
        device_(ModelAccess::state(model).workspace->device()),
        caches_(std::move(caches)),
        options_(options),
        trace_(trace),
        top_k_(top_k),
        samplers_(caches_.size(), Sampler(sampling)),
        drawn_(caches_.size()),
        random_(model.vocab_size(), static_cast<uint64_t>(1 + own_sequences(options.model))),
        clock_(std::move(timeline)) {}

  Status run(Decode& decode) {
    Model::State& state = ModelAccess::state(model_);
    decode.batch = static_cast<int64_t>(caches_.size());
    const bool records = state.recorded.on;
    state.observer.on_part = [this](StepPart part) { clock_.end(name(part)); };
    std::vector<double> parts[kNumParts];
    const Status timed = steps([&](double) {
      for (size_t p = 0; p < kNumParts; ++p) parts[p].push_back(clock_.us()[p]);
    });
    state.observer.on_part = {};
    MORACLE_CHECK(timed);
    MORACLE_TRY(decode.experts_touched, experts_touched(state, decode.batch, top_k_));
    for (size_t p = 0; p < kNumParts; ++p) {
      const double us = median(parts[p]);
      if (us > 0) decode.parts.push_back({std::string(kParts[p]), us, p < kPerLayer});
    }
    if (!device_.host_visible()) {
      // Times steps without marks between the parts: first enqueued one by one, then all at once.
      total_.clear();
      state.recorded.on = false;
      MORACLE_CHECK(steps([](double) {}));
      state.recorded.on = records;
    }
    decode.steps = static_cast<int64_t>(total_.size());
    decode.us_median = median(total_);
    decode.placed = placed_since();
    decode.us_min = *std::min_element(total_.begin(), total_.end());
    if (device_.host_visible() || !records) return {};
    MORACLE_CHECK(steps([](double) {}));  // the first step is recorded
    total_.clear();
    static_cast<void>(placed_since());
    MORACLE_CHECK(steps([](double) {}));
    decode.us_replayed = median(total_);
    decode.placed = placed_since();
    return {};
  }

  /// Prefills prompts, all side by side, as far as the time allows.
  Status prefill(Decode& decode) {
    Model::State& state = ModelAccess::state(model_);
    state.observer.on_part = [this](StepPart part) { clock_.end(name(part)); };
    std::array<double, kNumParts + 1> us{};
    const Status done = prompt_steps([&](int64_t tokens, double all) {
      decode.prompt_tokens += tokens;
      decode.us_prompt += all;
      for (size_t p = 0; p < kNumParts; ++p) us[p] += clock_.us()[p];
    });
    state.observer.on_part = {};
    for (size_t p = 0; p < kNumParts; ++p) {
      if (us[p] > 0) decode.prompt_parts.push_back({std::string(kParts[p]), us[p], p < kPerLayer});
    }
    return done;
  }

 private:
  // What steps found in slots since the last call.
  PlacementCounts placed_since() {
    const PlacementCounts now = model_.placement_counts();
    PlacementCounts since = now;
    since.hits -= counted_.hits, since.misses -= counted_.misses, since.moves -= counted_.moves;
    since.bytes_moved -= counted_.bytes_moved;
    since.reads -= counted_.reads, since.bytes_read -= counted_.bytes_read;
    since.steps_us -= counted_.steps_us, since.host_waits_us -= counted_.host_waits_us;
    if (now.slots_wait_us >= 0) since.slots_wait_us -= counted_.slots_wait_us;
    for (size_t d = 0; d < counted_.hits_of_devices.size(); ++d)
      since.hits_of_devices[d] -= counted_.hits_of_devices[d];
    counted_ = now;
    return since;
  }

  // Lets the tokens of the next step choose the experts of the trace.
  Status force_experts() {
    if (trace_.num_steps() == 0) return {};
    const auto batch = static_cast<int64_t>(caches_.size());
    int64_t routed = 0;
    for (Layer& layer : ModelAccess::state(model_).layers) {
      MoeStage& stage = layer.feed_forward.routed;
      if (!stage.has_router()) continue;
      forced_.clear();
      for (int64_t s = 0; s < batch; ++s) {
        // Sequences are far apart in the trace.
        const int64_t at = traced_ + s * (trace_.num_steps() / batch);
        const auto chosen = trace_.chosen(at % trace_.num_steps(), routed % trace_.num_layers);
        forced_.insert(forced_.end(), chosen.begin(), chosen.end());
      }
      MORACLE_CHECK(stage.force(forced_, device_));
      ++routed;
    }
    ++traced_;
    return {};
  }

  // The time of a step. All ranks take rank 0's, so that all run equally many steps.
  Result<double> finish() {
    MORACLE_TRY(double us, clock_.finish());
    if (model_.group() != nullptr)
      MORACLE_CHECK(model_.group()->broadcast(std::as_writable_bytes(std::span(&us, 1)), 0));
    return us;
  }

  /// Calls each(tokens, microseconds).
  template <class Each>
  Status prompt_steps(const Each& each) {
    const auto batch = static_cast<int64_t>(caches_.size());
    const int64_t most = std::max<int64_t>(1, model_.max_num_tokens() / batch);
    // The first pass touches memory for the first time and does not count.
    for (const bool counts : {false, true}) {
      for (KvCache& cache : caches_) MORACLE_CHECK(cache.truncate(0));
      double spent = 0;
      for (int64_t done = 0; done < options_.prompt && spent < options_.seconds * 1e6;
           done += most) {
        const int64_t count = std::min(most, options_.prompt - done);
        const std::vector<int32_t> ids = random_.take(count * batch);
        std::vector<Model::Step> step;
        for (KvCache& cache : caches_) {
          step.push_back({std::span(ids).subspan(step.size() * count, static_cast<size_t>(count)),
                          &cache, -1});
        }
        MORACLE_CHECK(go_on(spent));
        clock_.start();
        MORACLE_CHECK(model_.forward(step));
        clock_.end("norms");  // the last norms: no other part follows
        MORACLE_TRY(const double us, finish());
        spent += us;
        if (!counts) break;
        each(count * batch, us);
      }
    }
    return {};
  }

  Status go_on(double us) const {
    const double share = std::min(us * 1e-6 / options_.seconds, 1.0);
    if (!options_.model.progress ||
        options_.model.progress(static_cast<int64_t>(share * 1000), 1000))
      return {};
    return cancelled();
  }

  template <class Each>
  Status steps(const Each& each) {
    double spent = 0;
    MORACLE_CHECK(go_on(spent));
    MORACLE_CHECK(step());  // touches memory for the first time
    MORACLE_CHECK(clock_.finish());
    for (int64_t n = 0; spent < options_.seconds * 1e6 || n < 3; ++n) {
      MORACLE_CHECK(step());
      MORACLE_TRY(const double us, finish());
      each(us);
      total_.push_back(us);
      spent += us;
      MORACLE_CHECK(go_on(spent));
    }
    return {};
  }

  // Ignore the sampled tokens: the next step takes distinct random tokens.
  Status step() {
    const std::vector<int32_t> tokens = random_.take(static_cast<int64_t>(caches_.size()));
    std::vector<Model::Step> step;
    for (size_t s = 0; s < caches_.size(); ++s) {
      MORACLE_CHECK(caches_[s].truncate(options_.context));
      step.push_back({{&tokens[s], 1}, &caches_[s], -1});
    }
    MORACLE_CHECK(force_experts());
    clock_.start();
    MORACLE_CHECK(model_.forward(step));
    MORACLE_CHECK(draw(model_, 0, samplers_, drawn_));
    clock_.end("sampling");
    if (std::find(drawn_.begin(), drawn_.end(), kNothingDrawn) == drawn_.end()) return {};
    return Error{ErrorKind::kUnsupported, "", "bench", "finite logits",
                 "the random weights gave NaN or infinity"};
  }

  Model& model_;
  Device& device_;
  std::vector<KvCache> caches_;
  const DecodeOptions& options_;
  const RoutingTrace& trace_;
  const int64_t top_k_;
  std::vector<Sampler> samplers_;  // one for each sequence
  std::vector<int32_t> drawn_;
  RandomTokens random_;
  PartClock clock_;
  std::vector<double> total_;
  PlacementCounts counted_;
  int64_t traced_ = 0;  // steps
  std::vector<int32_t> forced_;
};

}  // namespace

double Decode::us_all_layers(const std::vector<DecodePart>& of) const {
  double us = 0;
  for (const DecodePart& part : of) us += us_all_layers(part);
  return us;
}
double Decode::us_all_layers() const {
  return us_all_layers(parts);
}

double Decode::us_all_layers(double us) const {
  double built = 0;
  for (const DecodePart& part : parts) built += part.us;
  return us * us_all_layers() / built;
}

namespace {

Status check(const DecodeOptions& options, int64_t max_context) {
  if (options.context < 1 || options.context >= max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "context",
                 str("1 to ", max_context - 1, " tokens"), str("it is ", options.context)};
  }
  const SpeculateOptions& speculate = options.speculate;
  if (speculate.drafts < 0 || speculate.drafts > Speculation::kMaxDrafts) {
    return Error{ErrorKind::kInvalidArgument, "", "speculate",
                 str("0 to ", Speculation::kMaxDrafts, " drafts"), str("it is ", speculate.drafts)};
  }
  if (!(speculate.acceptance >= 0 && speculate.acceptance <= 1)) {
    return Error{ErrorKind::kInvalidArgument, "", "acceptance", "0 to 1",
                 str("it is ", speculate.acceptance)};
  }
  if (speculate.drafts > 0 && options.context + kSpeculatedTokens > max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "context",
                 str("at most ", max_context - kSpeculatedTokens, " tokens with drafts"),
                 str("it is ", options.context)};
  }
  if (options.prompt < 0 || options.prompt > max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "prompt", str("0 to ", max_context, " tokens"),
                 str("it is ", options.prompt)};
  }
  for (const int64_t batch : options.batches) {
    if (batch >= 1 && batch <= Model::kMaxLogitRows) continue;
    return Error{ErrorKind::kInvalidArgument, "", "batches",
                 str("1 to ", Model::kMaxLogitRows, " sequences"), str("it is ", batch)};
  }
  return {};
}

ModelOptions model_options(const DecodeOptions& options) {
  ModelOptions model = options.model;
  const int64_t page = cache_page(model.device.platform);
  const auto in_pages = [&](int64_t tokens) { return (tokens + page - 1) / page * page; };
  for (const int64_t batch : options.batches)
    model.cached_tokens = std::max(model.cached_tokens,
                                   batch * in_pages(std::max(options.context + 1, options.prompt)));
  if (options.speculate.drafts > 0)  // beside those of the first batch
    model.cached_tokens +=
        (1 + options.speculate.drafts) * in_pages(options.context + kSpeculatedTokens);
  if (options.prompt > 0) return model;
  model.max_num_tokens = 1;
  for (const int64_t batch : options.batches)
    model.max_num_tokens = std::max(model.max_num_tokens, batch);
  // Recurrent layers run accepted drafts again.
  if (options.speculate.drafts > 0)
    model.max_num_tokens = std::max(model.max_num_tokens, 3 * Speculation::kMaxDrafts);
  return model;
}

// The last layer's experts; a dense model has none.
LayerSpec last_experts(const std::vector<Choice>& choices) {
  LayerSpec experts;
  for (const Choice& choice : choices)
    if (choice.part == "experts") experts = choice.selection.request.layer;
  return experts;
}

// The trace of the options, or one that is generated. Errors: a trace of other sizes.
Result<RoutingTrace> trace_of(const DecodeOptions& options, const Model::State& state,
                              const LayerSpec& experts) {
  if (options.routing_trace.empty()) return RoutingTrace();
  if (options.routing_trace == kGeneratedTrace) {
    return generate_trace({.num_steps = 4096,
                           .num_layers = static_cast<int64_t>(state.layers.size()),
                           .num_experts = experts.num_experts,
                           .top_k = experts.top_k});
  }
  MORACLE_TRY(RoutingTrace trace, RoutingTrace::open(options.routing_trace));
  if (trace.num_experts == experts.num_experts && trace.top_k == experts.top_k) return trace;
  return Error{ErrorKind::kInvalidArgument, "", "routing trace",
               str(experts.num_experts, " experts, top-", experts.top_k, ", as the model"),
               str("it has ", trace.num_experts, " experts, top-", trace.top_k)};
}

Result<std::vector<Decode>> decode(Model& model, int64_t all_layers,
                                   const SamplingOptions& sampling, const DecodeOptions& options) {
  const Model::State& state = ModelAccess::state(model);
  const LayerSpec experts = last_experts(model.choices());
  MORACLE_TRY(const RoutingTrace trace, trace_of(options, state, experts));
  const int64_t length = std::max(options.context + 1, options.prompt);
  // A recurrent state starts as zeros. Run one token first, so that timed steps read a real state.
  const bool recurrent = state.state_pool != nullptr;
  const auto make_caches = [&](int64_t count, int64_t capacity) -> Result<std::vector<KvCache>> {
    std::vector<KvCache> caches;
    for (int64_t s = 0; s < count; ++s) {
      MORACLE_TRY(KvCache cache, model.make_cache(capacity));
      MORACLE_CHECK(fill(ModelAccess::state(cache), state, options.context - (recurrent ? 1 : 0),
                         static_cast<uint64_t>(own_sequences(options.model) * count + s + 1),
                         state.workspace->device(), options.model.progress));
      if (recurrent) {
        const int32_t token = static_cast<int32_t>(s);
        const Model::Step step{{&token, 1}, &cache, -1};
        MORACLE_CHECK(model.forward({&step, 1}));
      }
      caches.push_back(std::move(cache));
    }
    return caches;
  };
  std::vector<Decode> results;
  for (const int64_t batch : options.batches) {
    MORACLE_TRY(std::vector<KvCache> caches, make_caches(batch, length));
    Decode result;
    result.num_experts = experts.num_experts;
    result.num_layers = static_cast<int64_t>(state.layers.size());
    result.all_layers = all_layers;
    result.context = options.context;
    result.weight_bytes = model.weight_bytes();
    result.choices = model.choices();
    result.cache_dtype = state.cache_dtype;
    for (const Layer& layer : state.layers) {
      const PlacedMoe* const placed = layer.feed_forward.routed.placed();
      if (placed != nullptr) result.num_slots = placed->slots_plan().experts.num_local();
    }
    MORACLE_TRY(std::unique_ptr<Timeline> timeline, state.workspace->device().timeline());
    Decoder decoder(model, std::move(caches), options, sampling, trace, experts.top_k,
                    std::move(timeline));
    MORACLE_CHECK(decoder.run(result));
    result.predicted = predict(state, trace, result);
    if (options.prompt > 0) MORACLE_CHECK(decoder.prefill(result));
    if (options.speculate.drafts > 0 && results.empty()) {
      MORACLE_TRY(std::vector<KvCache> texts,
                  make_caches(1 + options.speculate.drafts, options.context + kSpeculatedTokens));
      MORACLE_TRY(result.speculated, speculate(model, texts, options.speculate, options.seconds));
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

Result<std::vector<Decode>> decode(const ModelShape& shape, const RandomModelOptions& weights,
                                   const DecodeOptions& options) {
  MORACLE_CHECK(check(options, shape.max_context));
  if (weights.num_layers < 1 || weights.num_layers > shape.num_layers) {
    return Error{ErrorKind::kInvalidArgument, "", "num_layers",
                 str("1 to ", shape.num_layers, " layers"), str("it is ", weights.num_layers)};
  }
  const int64_t interval = std::max<int64_t>(shape.delta.interval, 1);
  if (weights.num_layers % interval != 0) {
    return Error{ErrorKind::kInvalidArgument, "", "num_layers",
                 str("a multiple of ", interval, " layers, so that each kind counts by its share"),
                 str("it is ", weights.num_layers)};
  }
  MORACLE_TRY(RandomModel random, random_model(shape, weights));
  MORACLE_TRY(Model model, ModelAccess::load(std::move(random.description), model_options(options),
                                             {}, random.bytes));
  return decode(model, shape.num_layers, shape.sampling, options);
}

Result<std::vector<Decode>> decode(const Checkpoint& checkpoint, const DecodeOptions& options) {
  MORACLE_TRY(Model model, Model::load(checkpoint, model_options(options)));
  const Model::State& state = ModelAccess::state(model);
  MORACLE_CHECK(check(options, model.max_context()));
  MORACLE_TRY(const GenerationConfig generation, GenerationConfig::open(checkpoint));
  return decode(model, static_cast<int64_t>(state.layers.size()), generation.sampling, options);
}

}  // namespace moracle::bench
