#include "kernels/batch.h"

#include <algorithm>
#include <bit>

#include "base/try.h"
#include "oracle/carve.h"

namespace moracle {
namespace {

struct Tables {
  int32_t *ids, *positions, *short_positions, *long_positions;
  float* rotary_factors;
  int32_t *sequences, *first_token, *first_page;
  std::byte **states, **pages;
  size_t bytes;
};
// The pages come last: the other offsets depend only on the numbers of tokens and sequences.
Tables carve(int64_t tokens, int64_t sequences, int64_t pages, std::byte* base) {
  Carver carver(base);
  Tables t{};
  t.ids = carver.take<int32_t>(tokens);
  t.positions = carver.take<int32_t>(tokens);
  t.short_positions = carver.take<int32_t>(tokens);
  t.long_positions = carver.take<int32_t>(tokens);
  t.rotary_factors = carver.take<float>(tokens);
  t.sequences = carver.take<int32_t>(tokens);
  t.first_token = carver.take<int32_t>(sequences + 1);
  t.first_page = carver.take<int32_t>(sequences);
  t.states = carver.take<std::byte*>(2 * sequences);
  t.pages = carver.take<std::byte*>(pages);
  t.bytes = carver.bytes();
  return t;
}

void write(std::span<const SequenceTokens> sequences, int64_t page, const Tables& to) {
  int32_t token = 0, pages = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceTokens& one = sequences[s];
    to.first_token[s] = token;
    to.first_page[s] = pages;
    to.states[2 * s] = one.state_before;
    to.states[2 * s + 1] = one.state_after;
    const auto count = static_cast<int64_t>(one.ids.size());
    for (int64_t i = 0; i < count; ++i, ++token) {
      to.ids[token] = one.ids[i];
      to.positions[token] = static_cast<int32_t>(one.position + i);
      to.short_positions[token] = one.is_long ? 0 : to.positions[token];
      to.long_positions[token] = one.is_long ? to.positions[token] : 0;
      to.rotary_factors[token] = one.rotary_factor;
      to.sequences[token] = static_cast<int32_t>(s);
    }
    const int64_t used = (one.position + count + page - 1) / page;
    std::copy_n(one.pages.begin(), used, to.pages + pages);
    pages += static_cast<int32_t>(used);
  }
  to.first_token[sequences.size()] = token;
}

}  // namespace

Status BatchTable::fill(std::span<const SequenceTokens> sequences, int64_t page, Device& device,
                        Stream stream) {
  Batch batch;
  batch.num_sequences = static_cast<int64_t>(sequences.size());
  batch.page = page;
  int64_t pages = 0, longest = 1;
  for (const SequenceTokens& one : sequences) {
    const auto count = static_cast<int64_t>(one.ids.size());
    batch.num_tokens += count;
    batch.most_tokens = std::max(batch.most_tokens, count);
    batch.fewest_tokens = &one == sequences.data() ? count : std::min(batch.fewest_tokens, count);
    longest = std::max(longest, one.position + count);
    pages += (one.position + count + page - 1) / page;
  }
  batch.longest =
      128 * static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest + 127) / 128));
  const auto carved = [&](std::byte* base) {
    return carve(batch.num_tokens, batch.num_sequences, pages, base);
  };
  const size_t bytes = carved(nullptr).bytes;
  host_.resize(std::max(host_.size(), bytes));
  write(sequences, page, carved(host_.data()));
  std::byte* base = host_.data();
  moved_ = false;
  if (!device.host_visible()) {
    if (bytes > device_.bytes()) {
      device_ = Buffer();
      // Round the size up: small increments would move the buffer again and again.
      MORACLE_TRY(device_, device.allocate(std::bit_ceil(std::max<size_t>(bytes, 1 << 16))));
      moved_ = true;
    }
    base = device_.as<std::byte>();
    MORACLE_CHECK(device.enqueue_upload(base, host_.data(), bytes, stream));
  }
  const Tables tables = carved(base);
  batch.ids = tables.ids, batch.positions = tables.positions, batch.sequences = tables.sequences;
  batch.short_positions = tables.short_positions, batch.long_positions = tables.long_positions;
  batch.rotary_factors = tables.rotary_factors;
  batch.first_token = tables.first_token, batch.first_page = tables.first_page;
  batch.pages = tables.pages, batch.states = tables.states;
  batch_ = batch;
  return {};
}

}  // namespace moracle
