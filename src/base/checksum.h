// Finds accidental changes of bytes: of weights that ranks compare, of messages between ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moracle {

/// XXH3 with 64 bits. An accidental change keeps the checksum with a probability of about 2^-64. A
/// deliberate change can keep it.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace moracle
