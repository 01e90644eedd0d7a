#include "models/families/recurrent/ngram_hashes.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"

namespace moracle {
namespace ngram_hashes {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;

// SplitMix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
uint64_t split_mix(uint64_t value) {
  value += kGamma;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// Odd, and small enough that a product with a token id has 63 bits.
std::vector<uint64_t> multipliers(uint64_t seed, int64_t vocab_size, int64_t size, int64_t index) {
  constexpr uint64_t kStep = 10007;
  const uint64_t most = std::numeric_limits<int64_t>::max() / std::max<int64_t>(vocab_size, 1);
  const uint64_t half = std::max<uint64_t>(1, most / 2);
  std::vector<uint64_t> numbers;
  for (int64_t i = 1; i <= size; ++i) {
    const uint64_t start = seed + kStep * static_cast<uint64_t>(index);
    numbers.push_back(2 * (split_mix(start + kGamma * static_cast<uint64_t>(i)) % half) + 1);
  }
  return numbers;
}

bool is_prime(uint64_t number) {
  if (number < 2) return false;
  for (uint64_t divisor = 2; divisor * divisor <= number; ++divisor)
    if (number % divisor == 0) return false;
  return true;
}

// Those of all heads: `count` primes behind the first `skipped` ones from `base` on.
std::vector<uint64_t> primes(uint64_t base, int64_t skipped, int64_t count) {
  std::vector<uint64_t> found;
  uint64_t number = base;
  for (int64_t i = 0; i < skipped + count; ++number) {
    if (!is_prime(number)) continue;
    if (i++ >= skipped) found.push_back(number);
  }
  return found;
}

// The numbers that the file holds under this name, in place of those computed.
Status read_stored(const Checkpoint& checkpoint, const std::string& name,
                   std::vector<uint64_t>& numbers) {
  if (!checkpoint.has_tensor(name)) return {};
  const Tensors& tensors = checkpoint.state().tensors;
  MORACLE_TRY(const TensorView view, checkpoint.tensor(name));
  const std::vector<int64_t> shape = {static_cast<int64_t>(numbers.size())};
  if (view.dtype != DType::kI64 || view.shape != shape)
    return tensors.wrong(name, str("i64 [", shape[0], "]"), "it is " + to_string(view));
  MORACLE_TRY(const std::vector<std::byte> bytes, checkpoint.read(name));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return {};
}

}  // namespace
}  // namespace ngram_hashes

Result<NgramHashes> describe_ngram_hashes(const Checkpoint& checkpoint, const std::string& prefix,
                                          const NgramSpec& spec, int64_t index) {
  using namespace ngram_hashes;
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const int64_t base, config.integer({"ngram_vocab_size_base"}, 1, 1 << 30));
  MORACLE_TRY(const int64_t seed, config.integer({"seed"}));
  MORACLE_TRY(const int64_t multiple,
              config.integer({"make_ngram_vocab_size_divisible_by"}, 1, 1 << 20));
  MORACLE_TRY(const int64_t vocab_size, config.integer({"vocab_size"}, 1));
  NgramHashes hashes;
  hashes.multipliers = multipliers(static_cast<uint64_t>(seed), vocab_size, spec.size, index);
  hashes.sizes = primes(static_cast<uint64_t>(base), index * spec.num_heads(), spec.num_heads());
  uint64_t rows = 0;
  for (const uint64_t size : hashes.sizes) {
    hashes.offsets.push_back(rows);
    rows += size;
  }
  hashes.num_rows = (static_cast<int64_t>(rows) + multiple - 1) / multiple * multiple;
  if (hashes.num_rows > std::numeric_limits<int32_t>::max())
    return config.unsupported({"ngram_vocab_size_base"}, "tables of fewer than 2^31 rows",
                              str("one has ", hashes.num_rows));
  MORACLE_CHECK(read_stored(checkpoint, prefix + "layer_multipliers", hashes.multipliers));
  MORACLE_CHECK(read_stored(checkpoint, prefix + "ngram_heads_vocab_sizes", hashes.sizes));
  MORACLE_CHECK(read_stored(checkpoint, prefix + "ngram_heads_offsets", hashes.offsets));
  for (size_t head = 0; head < hashes.sizes.size(); ++head) {
    const auto all = static_cast<uint64_t>(hashes.num_rows);
    if (hashes.sizes[head] >= 1 && hashes.sizes[head] <= all &&
        hashes.offsets[head] <= all - hashes.sizes[head])
      continue;
    return checkpoint.state().tensors.wrong(
        prefix + "ngram_heads_vocab_sizes", str("rows of a table of ", all),
        str("head ", head, " has ", hashes.sizes[head], " from ", hashes.offsets[head], " on"));
  }
  return hashes;
}

}  // namespace moracle
