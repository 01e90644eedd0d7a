#include "placement/trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/json/json_field.h"
#include "base/json/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

constexpr const char* kTraceFormat = "moracle routing trace 1";
constexpr int64_t kMostTraced = int64_t{1} << 16;  // layers, and experts
constexpr size_t kMaxTraceBytes = size_t{1} << 30;

Status read_step(const JsonField& from, RoutingTrace& to) {
  MORACLE_TRY(const std::vector<JsonField> layers, from.items());
  if (static_cast<int64_t>(layers.size()) != to.num_layers)
    return from.bad(str("an array for each of ", to.num_layers, " layers"));
  for (const JsonField& layer : layers) {
    MORACLE_TRY(const std::vector<JsonField> ids, layer.items());
    if (static_cast<int64_t>(ids.size()) != to.top_k) return layer.bad(str(to.top_k, " experts"));
    for (const JsonField& id : ids) {
      MORACLE_TRY(const int64_t expert, id.integer(0, to.num_experts - 1));
      to.ids.push_back(static_cast<int32_t>(expert));
    }
  }
  return {};
}

// Draws the experts of one layer, step after step.
class LayerTrace {
 public:
  LayerTrace(const TraceOptions& options, uint64_t seed)
      : options_(options), engine_(seed), recent_(options.num_experts) {
    std::iota(recent_.begin(), recent_.end(), 0);
    std::shuffle(recent_.begin(), recent_.end(), engine_);
    std::vector<int32_t> popular = recent_;
    std::shuffle(popular.begin(), popular.end(), engine_);
    std::vector<double> weights(popular.size());
    for (size_t r = 0; r < popular.size(); ++r)
      weights[popular[r]] = std::pow(static_cast<double>(r + 1), -options.zipf);
    by_popularity_ = std::discrete_distribution<int32_t>(weights.begin(), weights.end());
    following_ = popular;
  }

  /// `before`: the choices of the layer before; empty: it is the first.
  void step(std::span<const int32_t> before, std::vector<int32_t>& chosen) {
    chosen.clear();
    for (int64_t j = 0; j < options_.top_k; ++j) {
      const bool follows =
          options_.coupling > 0 && !before.empty() && unit_(engine_) < options_.coupling;
      const bool again = unit_(engine_) < options_.persistence;
      const int32_t expert = follows ? following_[before[j]]
                             : again ? lately_chosen()
                                     : by_popularity_(engine_);
      // A token has an expert once: take the one used next longest ago instead.
      auto at = std::find(recent_.begin(), recent_.end(), expert);
      while (std::find(chosen.begin(), chosen.end(), *at) != chosen.end())
        if (++at == recent_.end()) at = recent_.begin();
      chosen.push_back(*at);
    }
    for (const int32_t expert : chosen) {
      const auto at = std::find(recent_.begin(), recent_.end(), expert);
      std::rotate(recent_.begin(), at, at + 1);
    }
  }

 private:
  int32_t lately_chosen() {
    const double experts = static_cast<double>(options_.num_experts);
    const double depth = -std::log1p(-unit_(engine_)) * options_.recency * experts;
    if (depth >= experts) return by_popularity_(engine_);
    return recent_[static_cast<size_t>(depth)];
  }

  const TraceOptions& options_;
  std::mt19937_64 engine_;
  std::uniform_real_distribution<double> unit_;
  std::discrete_distribution<int32_t> by_popularity_;
  std::vector<int32_t> recent_;     // the last chosen first
  std::vector<int32_t> following_;  // by expert of the layer before
};

}  // namespace

Result<RoutingTrace> RoutingTrace::open(const std::string& path) {
  MORACLE_TRY(const std::string text, read_small_file(path, kMaxTraceBytes));
  MORACLE_TRY(const nlohmann::json json, parse_json(text, path));
  const JsonField file(json, path);
  if (!file.is_object() || !file["format"].value().is_string() ||
      file["format"].value() != kTraceFormat) {
    return Error{ErrorKind::kBadFile, path, "format", str("\"", kTraceFormat, "\""),
                 file["format"].fact()};
  }
  RoutingTrace trace;
  MORACLE_TRY(trace.num_layers, file["num_layers"].integer(1, kMostTraced));
  MORACLE_TRY(trace.num_experts, file["num_experts"].integer(1, kMostTraced));
  MORACLE_TRY(trace.top_k, file["top_k"].integer(1, trace.num_experts));
  MORACLE_TRY(const std::vector<JsonField> steps, file["steps"].items());
  for (const JsonField& step : steps) MORACLE_CHECK(read_step(step, trace));
  return trace;
}

std::string RoutingTrace::json() const {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (int64_t s = 0; s < num_steps(); ++s) {
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    for (int64_t l = 0; l < num_layers; ++l) layers.push_back(chosen(s, l));
    steps.push_back(std::move(layers));
  }
  const nlohmann::ordered_json all = {{"format", kTraceFormat},
                                      {"num_layers", num_layers},
                                      {"num_experts", num_experts},
                                      {"top_k", top_k},
                                      {"steps", std::move(steps)}};
  return all.dump();
}

RoutingTrace generate_trace(const TraceOptions& options) {
  RoutingTrace trace{options.num_layers, options.num_experts, options.top_k, {}};
  trace.ids.resize(options.num_steps * options.num_layers * options.top_k);
  std::vector<int32_t> chosen;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    LayerTrace draw(options, options.seed * kMostTraced + static_cast<uint64_t>(layer));
    for (int64_t step = 0; step < options.num_steps; ++step) {
      draw.step(layer > 0 ? trace.chosen(step, layer - 1) : std::span<const int32_t>(), chosen);
      std::copy(chosen.begin(), chosen.end(),
                trace.ids.begin() + (step * options.num_layers + layer) * options.top_k);
    }
  }
  return trace;
}

double lru_hit_rate(const RoutingTrace& trace, int64_t capacity, int64_t from) {
  int64_t hits = 0, choices = 0;
  for (int64_t layer = 0; layer < trace.num_layers; ++layer) {
    std::vector<int32_t> held;  // the last used first
    for (int64_t step = 0; step < trace.num_steps(); ++step) {
      for (const int32_t id : trace.chosen(step, layer)) {
        const auto at = std::find(held.begin(), held.end(), id);
        if (step >= from) hits += at != held.end(), ++choices;
        if (at == held.end())
          held.insert(held.begin(), id);
        else
          std::rotate(held.begin(), at, at + 1);
        if (static_cast<int64_t>(held.size()) > capacity) held.pop_back();
      }
    }
  }
  return choices == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(choices);
}

double static_hit_rate(const RoutingTrace& trace, int64_t capacity) {
  int64_t hits = 0, choices = 0;
  const int64_t half = trace.num_steps() / 2;
  for (int64_t layer = 0; layer < trace.num_layers; ++layer) {
    std::vector<int64_t> uses(trace.num_experts);
    for (int64_t step = 0; step < half; ++step)
      for (const int32_t id : trace.chosen(step, layer)) ++uses[id];
    std::vector<int32_t> order(trace.num_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return uses[a] > uses[b]; });
    std::vector<bool> held(trace.num_experts);
    for (int64_t i = 0; i < std::min(capacity, trace.num_experts); ++i) held[order[i]] = true;
    for (int64_t step = half; step < trace.num_steps(); ++step)
      for (const int32_t id : trace.chosen(step, layer)) hits += held[id], ++choices;
  }
  return choices == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(choices);
}

}  // namespace moracle
