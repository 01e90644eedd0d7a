// Messages between two ranks: a header, the bytes, a tag of the bytes. The header has a tag, too,
// so that the receiver finds changed, lost and repeated messages.
#pragma once

#include <sodium.h>

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
  Tag own = {};  ///< of all fields above
};

/// Computes the tag of the bytes of a message chunk by chunk, overlapped with their transfer.
class PayloadTag {
 public:
  static constexpr size_t kChunk = size_t{64} << 10;
  void add(std::span<const std::byte> chunk);
  Tag finish();

 private:
  friend class Seal;
  bool authenticates_ = false;
  uint64_t sum_ = 0;
  crypto_onetimeauth_poly1305_state state_ = {};
};

/// Makes the tags of the messages in one direction. In a job with a secret they are Poly1305 under
/// a key that only the two ranks know, a new one for each message. Without a secret they are
/// checksums, which are faster and find accidental changes only.
class Seal {
 public:
  using Key = std::array<unsigned char, 32>;
  Seal() = default;
  Seal(const Key& key, bool authenticates) : key_(key), authenticates_(authenticates) {}

  /// The tag of the next message's header, whose other fields are set.
  Tag of_header(const Header& header) const;
  /// Begins the tag of its bytes.
  PayloadTag of_payload() const;
  /// The message is complete: its keys are not used again.
  void next() { ++number_; }

 private:
  std::array<Key, 2> keys() const;  // of the header and of the bytes

  Key key_ = {};
  bool authenticates_ = false;
  uint64_t number_ = 0;
};

/// A connection with another rank.
struct Link {
  Socket socket;
  Seal out, in;
};

/// A whole message of `payload`. Errors: the deadline; the end of the connection.
Status send_message(Link& link, Kind kind, std::span<const std::byte> payload,
                    const Deadline& deadline);
/// The bytes of a message, after its header. Errors: likewise; changed bytes.
Status receive_payload(Link& link, std::span<std::byte> payload, const Deadline& deadline);
/// A message whose size is that of `payload`. Further errors: another kind or size.
Status receive_message(Link& link, Kind kind, std::span<std::byte> payload,
                       const Deadline& deadline);

}  // namespace moracle::tcp
