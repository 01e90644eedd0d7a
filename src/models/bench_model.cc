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
  for (std::vector<Buffer>* buffers : {&cache.keys, &cache.values}) {
    for (Buffer& buffer : *buffers) {
      const size_t whole = some.size();
      for (size_t at = 0; at < buffer.bytes(); at += whole) {
        MORACLE_CHECK(device.upload(buffer.as<std::byte>() + at, some.data(),
                                    std::min(whole, buffer.bytes() - at)));
      }
    }
  }
  cache.length = length;
  return device.synchronize();
}

// One token at a time, always the same number of tokens before it.
class Decoder {
 public:
  Decoder(Model& model, KvCache cache, const SamplingOptions& sampling)
      : model_(model), cache_(std::move(cache)), context_(cache_.length()), sampler_(sampling) {}

  Status run(double seconds, const Progress& progress) {
    ModelDoor::state(model_).on_part = [this](std::string_view part) { clock_.end(part); };
    double spent = 0;
    MORACLE_CHECK(step());  // touches what was never touched
    while (spent < seconds || steps_.size() < 3) {
      MORACLE_CHECK(step());
      double us = 0;
      for (size_t p = 0; p <= kNumParts; ++p) us += clock_.us()[p];
      for (size_t p = 0; p < kNumParts; ++p) parts_[p].push_back(clock_.us()[p]);
      steps_.push_back(us);
      spent += us * 1e-6;
      if (progress && !progress(static_cast<int64_t>(std::min(spent / seconds, 1.0) * 1000), 1000))
        return Error{ErrorKind::kCancelled, "", "bench", "", "stopped on request"};
    }
    ModelDoor::state(model_).on_part = {};
    return {};
  }

  void report(Decode& decode) const {
    decode.steps = static_cast<int64_t>(steps_.size());
    decode.us_median = median(steps_);
    decode.us_min = *std::min_element(steps_.begin(), steps_.end());
    for (size_t p = 0; p < kNumParts; ++p) {
      const double us = median(parts_[p]);
      if (us > 0) decode.parts.push_back({std::string(kParts[p]), us, p < kPerLayer});
    }
  }

 private:
  Status step() {
    cache_.truncate(context_);
    clock_.start();
    const Model::Step one{{&token_, 1}, &cache_, -1};
    MORACLE_CHECK(model_.forward({&one, 1}));
    MORACLE_TRY(const std::span<const float> logits, model_.logits(0, 1));
    clock_.end("output");
    token_ = sampler_.draw(logits);
    clock_.end("sampling");
    return {};
  }

  Model& model_;
  KvCache cache_;
  const int64_t context_;
  Sampler sampler_;
  int32_t token_ = 1;
  PartClock clock_;
  std::vector<double> steps_, parts_[kNumParts];
};

}  // namespace

double Decode::us_all_layers() const {
  double us = 0;
  for (const DecodePart& part : parts) us += us_all_layers(part);
  return us;
}

Result<Decode> decode(const ModelShape& shape, const DecodeOptions& options) {
  if (options.context < 1 || options.context >= shape.max_context) {
    return Error{ErrorKind::kInvalidArgument, "", "--context",
                 str("1 to ", shape.max_context - 1, " tokens"), str("it is ", options.context)};
  }
  if (options.num_layers < 1 || options.num_layers > shape.num_layers) {
    return Error{ErrorKind::kInvalidArgument, "", "--layers", str("1 to ", shape.num_layers),
                 str("it is ", options.num_layers)};
  }
  MORACLE_TRY(RandomModel random,
              random_model(shape, options.scheme, options.num_layers, options.most_bytes));
  ModelOptions model_options = options.model;
  model_options.max_num_tokens = 1;
  MORACLE_TRY(Model model, ModelDoor::load(std::move(random.description), model_options, {},
                                           random.owner, random.bytes));
  MORACLE_TRY(KvCache cache, model.make_cache(options.context + 1));
  MORACLE_CHECK(
      fill(ModelDoor::state(cache), options.context, ModelDoor::state(model).workspace->device()));
  Decoder decoder(model, std::move(cache), shape.sampling);
  MORACLE_CHECK(decoder.run(options.seconds, options.model.progress));
  Decode result;
  result.num_layers = options.num_layers;
  result.all_layers = shape.num_layers;
  result.context = options.context;
  result.weight_bytes = model.weight_bytes();
  result.choices = model.choices();
  decoder.report(result);
  return result;
}

}  // namespace moracle::bench
