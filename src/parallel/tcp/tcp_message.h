// Messages between two ranks: a header, then the bytes. Both have a tag, so that the receiver finds
// changed, lost and repeated messages.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "parallel/tcp/tcp_sockets.h"

namespace moracle::tcp {

enum class Kind : uint64_t { kData = 1, kAbort = 2 };
using Tag = std::array<uint64_t, 2>;
struct Header {
  Kind kind = Kind::kData;
  uint64_t bytes = 0;
  Tag part = {};  ///< of the bytes that follow
  Tag own = {};   ///< of all fields above
};

/// Computes the tags of the messages in one direction. In a job with a secret they are Poly1305
/// under a key that only the two ranks know, a new one for each message. Without a secret they are
/// checksums, which are faster and find accidental changes only.
class Seal {
 public:
  using Key = std::array<unsigned char, 32>;
  Seal() = default;
  Seal(const Key& key, bool authenticates) : key_(key), authenticates_(authenticates) {}

  /// The tag of the bytes of the next message.
  Tag of_part(std::span<const std::byte> part) const;
  /// The tag of its header, whose other fields are set.
  Tag of_header(const Header& header) const;
  /// The message is complete: its key is not used again.
  void next() { ++number_; }
  /// True if one part has the same tag for every rank.
  bool shares_parts() const { return !authenticates_; }

 private:
  Tag authenticated(std::span<const std::byte> bytes, int which) const;

  Key key_ = {};
  bool authenticates_ = false;
  uint64_t number_ = 0;
};

/// A connection with another rank.
struct Link {
  Socket socket;
  Seal out, in;
};

/// A whole message of `part`. Errors: the deadline; the end of the connection.
Status send_message(Link& link, Kind kind, std::span<const std::byte> part,
                    const Deadline& deadline);
/// A message whose size is that of `part`. Further errors: another kind or size; changed bytes.
Status receive_message(Link& link, Kind kind, std::span<std::byte> part, const Deadline& deadline);

}  // namespace moracle::tcp
