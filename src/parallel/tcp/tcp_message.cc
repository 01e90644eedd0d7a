#include "parallel/tcp/tcp_message.h"

#include <sodium.h>

#include <cstddef>
#include <cstring>

#include "base/checksum.h"
#include "base/try.h"

namespace moracle::tcp {
namespace {

std::span<const std::byte> before_own_tag(const Header& header) {
  return std::as_bytes(std::span(&header, 1)).first(offsetof(Header, own));
}

}  // namespace

// As RFC 8439 makes one-time keys: from the stream of ChaCha20, with the message's number as nonce.
// A block has the keys of the header and of the bytes.
Tag Seal::authenticated(std::span<const std::byte> bytes, int which) const {
  static_assert(sizeof(Tag) == crypto_onetimeauth_poly1305_BYTES);
  constexpr size_t kKey = crypto_onetimeauth_poly1305_KEYBYTES;
  unsigned char nonce[crypto_stream_chacha20_ietf_NONCEBYTES] = {};
  std::memcpy(nonce, &number_, sizeof number_);
  unsigned char keys[2 * kKey];
  crypto_stream_chacha20_ietf(keys, sizeof keys, nonce, key_.data());
  Tag tag;
  crypto_onetimeauth_poly1305(reinterpret_cast<unsigned char*>(tag.data()),
                              reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                              keys + which * kKey);
  sodium_memzero(keys, sizeof keys);
  return tag;
}

Tag Seal::of_part(std::span<const std::byte> part) const {
  return authenticates_ ? authenticated(part, 1) : Tag{checksum(part), 0};
}

Tag Seal::of_header(const Header& header) const {
  const std::span<const std::byte> bytes = before_own_tag(header);
  return authenticates_ ? authenticated(bytes, 0) : Tag{checksum(bytes, number_), 0};
}

Status send_message(Link& link, Kind kind, std::span<const std::byte> part,
                    const Deadline& deadline) {
  Header header{kind, part.size(), link.out.of_part(part), {}};
  header.own = link.out.of_header(header);
  link.out.next();
  MORACLE_CHECK(send_all(link.socket, std::as_bytes(std::span(&header, 1)), deadline));
  return send_all(link.socket, part, deadline);
}

Status receive_message(Link& link, Kind kind, std::span<std::byte> part, const Deadline& deadline) {
  Header header;
  MORACLE_CHECK(receive_all(link.socket, std::as_writable_bytes(std::span(&header, 1)), deadline));
  const bool right =
      header.own == link.in.of_header(header) && header.kind == kind && header.bytes == part.size();
  if (right) {
    MORACLE_CHECK(receive_all(link.socket, part, deadline));
    if (header.part == link.in.of_part(part)) {
      link.in.next();
      return {};
    }
  }
  return Error{ErrorKind::kIo, "", "tcp", "messages that arrive unchanged",
               "the checksum of one is wrong"};
}

}  // namespace moracle::tcp
