#include "models/generation/token_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numbers>

#include "kernels/cpu/sampling/draw_ops.h"

namespace moracle {
namespace {

constexpr size_t kBlock = 256;
constexpr size_t kFew = 64;  // weights that are sorted sooner than counted by their bits
constexpr double kUnit = 1.0 / static_cast<double>(uint64_t{1} << cpu::kWeightBits);
constexpr float kLeastWeight = static_cast<float>(kUnit);

// A weight in a sum, rounded as DrawOps rounds it.
uint64_t units_of(float weight) {
  constexpr double kRound = 0x1.8p10;  // its last bit is a unit
  return std::bit_cast<uint64_t>(static_cast<double>(weight) + kRound) -
         std::bit_cast<uint64_t>(kRound);
}

// The smallest float of at least `x` >= 0.
float at_least(double x) {
  const auto near = static_cast<float>(x);
  return near < x ? std::nextafter(near, 2.0f) : near;
}

}  // namespace

void TokenWeights::start(std::span<const float> logits, float largest, double temperature) {
  // The largest logit has the weight 1 at any temperature: 0 times a finite number.
  constexpr double kMostScale = 1e30;
  const auto scale = static_cast<float>(std::min(std::numbers::log2e / temperature, kMostScale));
  const cpu::DrawOps& ops = cpu::draw_ops();
  weights_.resize(logits.size());
  sums_.clear();
  sum_ = 0;
  for (size_t at = 0; at < logits.size(); at += kBlock) {
    const auto count = static_cast<int64_t>(std::min(kBlock, logits.size() - at));
    sums_.push_back(ops.weights(&logits[at], count, largest, scale, &weights_[at]));
    sum_ += sums_.back();
  }
}

void TokenWeights::keep(float least, float below) {
  const uint64_t least_units = units_of(least);
  sum_ = 0;
  for (size_t block = 0; block < sums_.size(); ++block) {
    const std::span<float> weights = of_block(block);
    const auto count = static_cast<int64_t>(weights.size());
    if (sums_[block] < std::max<uint64_t>(least_units, 1))
      sums_[block] = 0;
    else
      sums_[block] = cpu::draw_ops().keep(weights.data(), count, least, below);
    sum_ += sums_[block];
  }
}

std::span<float> TokenWeights::of_block(size_t block) {
  const size_t first = block * kBlock;
  return std::span(weights_).subspan(first, std::min(kBlock, weights_.size() - first));
}

void TokenWeights::change(size_t place, float weight) {
  const uint64_t more = units_of(weight) - units_of(weights_[place]);
  weights_[place] = weight;
  sums_[place / kBlock] += more;
  sum_ += more;
}

void TokenWeights::keep_top_p(float top_p) {
  const auto reach = static_cast<uint64_t>(std::ceil(top_p * static_cast<double>(sum_)));
  const Last last = find_last(std::clamp<uint64_t>(reach, 1, sum_));
  keep(last.weight, kAbove);
  if (last.kept < last.equals) drop_equals(last.weight, last.kept);
}

TokenWeights::Last TokenWeights::find_last_of_few(uint64_t reach) {
  bits_.clear();
  for (const float weight : weights_) {
    if (weight >= kLeastWeight) bits_.push_back(std::bit_cast<uint32_t>(weight));
  }
  std::ranges::sort(bits_, std::greater<>());
  uint64_t above = 0;  // the sum of heavier weights
  for (size_t first = 0;;) {
    const auto weight = std::bit_cast<float>(bits_[first]);
    const uint64_t each = units_of(weight);
    size_t end = first + 1;
    while (end < bits_.size() && bits_[end] == bits_[first]) ++end;
    const uint64_t equals = end - first;
    if (above + equals * each >= reach || end == bits_.size())
      return {weight, (reach - above + each - 1) / each, equals};
    above += equals * each;
    first = end;
  }
}

TokenWeights::Last TokenWeights::find_last(uint64_t reach) {
  if (weights_.size() <= kFew) return find_last_of_few(reach);
  constexpr int kCoarse = 17;
  const cpu::DrawOps& ops = cpu::draw_ops();
  uint32_t first = std::bit_cast<uint32_t>(kLeastWeight);
  by_bits_.assign(((std::bit_cast<uint32_t>(1.0f) - first) >> kCoarse) + 1, 0);
  // Weights below this one have together at most what the sum has beyond `reach`.
  const uint64_t least = std::max<uint64_t>((sum_ - reach) / weights_.size(), 1);
  for (size_t block = 0; block < sums_.size(); ++block) {
    const std::span<float> weights = of_block(block);
    if (sums_[block] >= least)
      ops.add_by_bits(weights.data(), static_cast<int64_t>(weights.size()), first, kCoarse,
                      by_bits_.data());
  }
  uint64_t above = 0;  // the sum of heavier weights
  const auto next = [&](int shift) {
    auto bucket = static_cast<uint32_t>(by_bits_.size() - 1);
    while (bucket > 0 && above + by_bits_[bucket] < reach) above += by_bits_[bucket--];
    first += bucket << shift;
  };
  next(kCoarse);
  const float from = std::bit_cast<float>(first);
  const float to = std::bit_cast<float>(first + (uint32_t{1} << kCoarse));
  bits_.resize(weights_.size());
  int64_t count = 0;
  for (size_t block = 0; block < sums_.size(); ++block) {
    const std::span<float> weights = of_block(block);
    if (sums_[block] >= least)
      count += ops.find(weights.data(), static_cast<int64_t>(weights.size()), from, to,
                        bits_.data() + count);
  }
  std::span<uint32_t> left = std::span(bits_).first(static_cast<size_t>(count));
  int width = kCoarse;
  for (const int shift : {8, 0}) {
    by_bits_.assign(size_t{1} << (width - shift), 0);
    for (const uint32_t bits : left)
      by_bits_[(bits - first) >> shift] += units_of(std::bit_cast<float>(bits));
    next(shift);
    const auto is_other = [&](uint32_t bits) { return (bits - first) >> shift != 0; };
    left = left.first(
        static_cast<size_t>(std::remove_if(left.begin(), left.end(), is_other) - left.begin()));
    width = shift;
  }
  const auto weight = std::bit_cast<float>(first);
  const uint64_t each = units_of(weight);
  return {weight, (reach - above + each - 1) / each, left.size()};
}

void TokenWeights::drop_equals(float weight, uint64_t kept) {
  for (size_t block = 0; block < sums_.size(); ++block) {
    if (sums_[block] == 0) continue;
    const std::span<float> weights = of_block(block);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] != weight) continue;
      if (kept > 0)
        --kept;
      else
        change(block * kBlock + i, 0);
    }
  }
}

void TokenWeights::keep_typical(float typical_p) {
  const double sum = static_cast<double>(sum_) * kUnit;
  double entropy = 0;
  surprises_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (sums_[i / kBlock] == 0 || weights_[i] == 0) continue;
    const double p = weights_[i] / sum;
    entropy -= p * std::log(p);
    surprises_.push_back({-std::log(p), i});
  }
  for (auto& [distance, i] : surprises_) distance = std::abs(distance - entropy);
  std::sort(surprises_.begin(), surprises_.end());
  size_t last = 0;
  for (double reached = weights_[surprises_[0].second];
       last + 1 < surprises_.size() && reached < typical_p * sum;)
    reached += weights_[surprises_[++last].second];
  for (size_t i = last + 1; i < surprises_.size(); ++i) {
    if (surprises_[i].first > surprises_[last].first) change(surprises_[i].second, 0);
  }
}

void TokenWeights::exclude_top(float threshold) {
  const float least = std::max(
      at_least(static_cast<double>(threshold) * static_cast<double>(sum_) * kUnit), kLeastWeight);
  float lightest = kAbove;
  size_t place = 0;
  for (size_t block = 0; block < sums_.size(); ++block) {
    if (sums_[block] < units_of(least)) continue;
    const std::span<float> weights = of_block(block);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] < least || weights[i] > lightest) continue;
      lightest = weights[i];
      place = block * kBlock + i;
    }
  }
  if (lightest == kAbove) return;
  const size_t block = place / kBlock;
  keep(0, least);
  if (sums_[block] == 0) std::ranges::fill(of_block(block), 0.0f);
  change(place, lightest);
}

size_t TokenWeights::draw(double share) const {
  const auto wanted = static_cast<uint64_t>(share * static_cast<double>(sum_));
  uint64_t left = std::min(wanted, sum_ - 1);
  size_t block = 0;
  while (left >= sums_[block]) left -= sums_[block++];
  size_t place = block * kBlock;
  for (uint64_t units = units_of(weights_[place]); left >= units;
       units = units_of(weights_[++place]))
    left -= units;
  return place;
}

}  // namespace moracle
