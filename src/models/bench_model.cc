#include "models/bench_model.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <random>

#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "models/bench_description.h"
#include "models/model_state.h"
#include "models/sampler.h"

namespace moracle::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The parts of a step, in its order; those of the layers first.
constexpr std::string_view kParts[] = {"norms",   "attention linears", "attention", "router",
                                       "experts", "shared expert",     "embedding", "output",
                                       "sampling"};
constexpr size_t kNumParts = std::size(kParts), kPerLayer = 6;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Adds the time since the last call to the part that has just ended.
class PartClock {
 public:
  void start() {
    us_ = {};
    last_ = Clock::now();
  }
  void end(std::string_view part) {
    const Clock::time_point now = Clock::now();
    const size_t at = std::find(std::begin(kParts), std::end(kParts), part) - std::begin(kParts);
    us_[at] += std::chrono::duration<double, std::micro>(now - last_).count();
    last_ = now;
  }
  const std::array<double, kNumParts + 1>& us() const { return us_; }

 private:
  std::array<double, kNumParts + 1> us_{};  // the last: parts that have no name here
  Clock::time_point last_;
};

// Random keys and values at every position: what attention reads, without computing it first.
Status fill(KvCache::State& cache, int64_t length, Device& device) {
  std::mt19937_64 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> floats(1 << 16);
  for (float& x : floats) x = normal(engine);
  const auto element = static_cast<size_t>(bits(cache.dtype) / 8);
  std::vector<std::byte> some(floats.size() * element);
  for (size_t i = 0; i < floats.size(); ++i) {
    const uint16_t half =
        cache.dtype == DType::kF16 ? float_to_f16(floats[i]) : float_to_bf16(floats[i]);
    const void* const from = cache.dtype == DType::kF32 ? static_cast<void*>(&floats[i]) : &half;
    std::memcpy(some.data() + i * element, from, element);
  }
  MORACLE_CHECK(cache.pool->grow(cache.pages, length));
  const size_t whole = some.size();
  for (std::byte* page : cache.pages) {
    for (size_t at = 0; at < cache.pool->page_bytes(); at += whole) {
      MORACLE_CHECK(
          device.upload(page + at, some.data(), std::min(whole, cache.pool->page_bytes() - at)));
    }
  }
  cache.length = length;
  return device.synchronize();
}

// One token of each sequence at a time, always the same number of tokens before it.
class Decoder {
 public:
  Decoder(Model& model, std::vector<KvCache> caches, const DecodeOptions& options,
          const SamplingOptions& sampling)
      : model_(model),
        device_(ModelDoor::state(model).workspace->device()),
        caches_(std::move(caches)),
        options_(options),
        sampler_(sampling),
        tokens_(caches_.size(), 1) {}

  Status run(Decode& decode) {
    Model::State& state = ModelDoor::state(model_);
    decode.batch = static_cast<int64_t>(caches_.size());
    // What a GPU is asked for is done later: a part has ended when it has been waited for.
    state.on_part = [this](std::string_view part) {
      if (!device_.host_visible()) waited_ = waited_.ok() ? device_.synchronize() : waited_;
      clock_.end(part);
    };
    std::vector<double> parts[kNumParts];
    const Status timed = steps([&](double) {
      for (size_t p = 0; p < kNumParts; ++p) parts[p].push_back(clock_.us()[p]);
    });
    state.on_part = {};
    MORACLE_CHECK(timed);
    MORACLE_CHECK(waited_);
    for (size_t p = 0; p < kNumParts; ++p) {
      const double us = median(parts[p]);
      if (us > 0) decode.parts.push_back({std::string(kParts[p]), us, p < kPerLayer});
    }
    if (!device_.host_visible()) {
      // Without the waiting: enqueued one by one, then all at once.
      total_.clear();
      state.recorded.on = false;
      MORACLE_CHECK(steps([](double) {}));
      state.recorded.on = options_.model.graphs;
    }
    decode.steps = static_cast<int64_t>(total_.size());
    decode.us_median = median(total_);
    decode.us_min = *std::min_element(total_.begin(), total_.end());
    if (device_.host_visible() || !options_.model.graphs) return {};
    MORACLE_CHECK(steps([](double) {}));  // the first of them is recorded
    total_.clear();
    MORACLE_CHECK(steps([](double) {}));
    decode.us_replayed = median(total_);
    return {};
  }

  /// Takes in prompts, all side by side, as far as the time allows.
  Status prefill(Decode& decode) {
    const auto batch = static_cast<int64_t>(caches_.size());
    const int64_t each = std::max<int64_t>(1, model_.max_num_tokens() / batch);
    const std::vector<int32_t> ids(each, 1);
    Clock::time_point start;
    // Once to touch what was never touched.
    for (const bool counts : {false, true}) {
      for (KvCache& cache : caches_) cache.truncate(0);
      start = Clock::now();
      for (int64_t done = 0; done < options_.prompt; done += each) {
        const auto count = static_cast<size_t>(std::min(each, options_.prompt - done));
        std::vector<Model::Step> step;
        for (KvCache& cache : caches_) step.push_back({{ids.data(), count}, &cache, -1});
        MORACLE_CHECK(model_.forward(step));
        MORACLE_CHECK(device_.synchronize());
        if (!counts) break;
        decode.prompt_tokens += static_cast<int64_t>(count) * batch;
        decode.us_prompt = microseconds_since(start);
        if (decode.us_prompt > options_.seconds * 1e6) break;
        MORACLE_CHECK(go_on(decode.us_prompt));
      }
    }
    return {};
  }

 private:
  static double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }
  Status go_on(double us) const {
    const double share = std::min(us * 1e-6 / options_.seconds, 1.0);
    if (!options_.model.progress ||
        options_.model.progress(static_cast<int64_t>(share * 1000), 1000))
      return {};
    return Error{ErrorKind::kCancelled, "", "bench", "", "stopped on request"};
  }

  template <class Each>
  Status steps(const Each& each) {
    double spent = 0;
    MORACLE_CHECK(step());  // touches what was never touched
    for (int64_t n = 0; spent < options_.seconds * 1e6 || n < 3; ++n) {
      MORACLE_CHECK(step());
      double us = 0;
      for (size_t p = 0; p <= kNumParts; ++p) us += clock_.us()[p];
      each(us);
      total_.push_back(us);
      spent += us;
      MORACLE_CHECK(go_on(spent));
    }
    return {};
  }

  Status step() {
    std::vector<Model::Step> step;
    for (size_t s = 0; s < caches_.size(); ++s) {
      caches_[s].truncate(options_.context);
      step.push_back({{&tokens_[s], 1}, &caches_[s], -1});
    }
    clock_.start();
    MORACLE_CHECK(model_.forward(step));
    const auto batch = static_cast<int64_t>(caches_.size());
    MORACLE_TRY(const std::span<const float> logits, model_.logits(0, batch));
    clock_.end("output");
    const size_t vocab = logits.size() / caches_.size();
    for (size_t s = 0; s < caches_.size(); ++s)
      tokens_[s] = sampler_.draw(logits.subspan(s * vocab, vocab));
    clock_.end("sampling");
    return {};
  }

  Model& model_;
  Device& device_;
  std::vector<KvCache> caches_;
  const DecodeOptions& options_;
  Sampler sampler_;
  std::vector<int32_t> tokens_;
  PartClock clock_;
  Status waited_;
  std::vector<double> total_;
};

}  // namespace

double Decode::us_all_layers() const {
  double us = 0;
  for (const DecodePart& part : parts) us += us_all_layers(part);
  return us;
}

double Decode::us_all_layers(double us) const {
  double built = 0;
  for (const DecodePart& part : parts) built += part.us;
  return us * us_all_layers() / built;
}

Result<std::vector<Decode>> decode(const ModelShape& shape, const DecodeOptions& options) {
  const int64_t length = std::max(options.context + 1, options.prompt);
  if (options.context < 1 || options.context >= shape.max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "--context",
                 str("1 to ", shape.max_context - 1, " tokens"), str("it is ", options.context)};
  }
  if (options.prompt < 0 || options.prompt > shape.max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "--prompt",
                 str("0 to ", shape.max_context, " tokens"), str("it is ", options.prompt)};
  }
  if (options.num_layers < 1 || options.num_layers > shape.num_layers) {
    return Error{ErrorKind::kInvalidArgument, "", "--layers", str("1 to ", shape.num_layers),
                 str("it is ", options.num_layers)};
  }
  for (const int64_t batch : options.batches) {
    if (batch >= 1 && batch <= Model::kMaxLogitRows) continue;
    return Error{ErrorKind::kInvalidArgument, "", "--batch",
                 str("1 to ", Model::kMaxLogitRows, " sequences"), str("it is ", batch)};
  }
  MORACLE_TRY(RandomModel random,
              random_model(shape, options.scheme, options.num_layers, options.most_bytes));
  ModelOptions model_options = options.model;
  if (options.prompt == 0) {
    model_options.max_num_tokens = 1;
    for (const int64_t batch : options.batches)
      model_options.max_num_tokens = std::max(model_options.max_num_tokens, batch);
  }
  MORACLE_TRY(Model model, ModelDoor::load(std::move(random.description), model_options, {},
                                           random.owner, random.bytes));
  std::vector<Decode> results;
  for (const int64_t batch : options.batches) {
    std::vector<KvCache> caches;
    for (int64_t s = 0; s < batch; ++s) {
      MORACLE_TRY(KvCache cache, model.make_cache(length));
      MORACLE_CHECK(fill(ModelDoor::state(cache), options.context,
                         ModelDoor::state(model).workspace->device()));
      caches.push_back(std::move(cache));
    }
    Decode result;
    result.num_layers = options.num_layers;
    result.all_layers = shape.num_layers;
    result.context = options.context;
    result.weight_bytes = model.weight_bytes();
    result.choices = model.choices();
    result.cache_dtype = ModelDoor::state(model).cache_dtype;
    Decoder decoder(model, std::move(caches), options, shape.sampling);
    MORACLE_CHECK(decoder.run(result));
    if (options.prompt > 0) MORACLE_CHECK(decoder.prefill(result));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace moracle::bench
