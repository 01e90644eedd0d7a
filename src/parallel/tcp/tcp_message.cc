#include "parallel/tcp/tcp_message.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/checksum.h"
#include "base/try.h"

namespace moracle::tcp {
namespace {

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

Error changed_bytes() {
  return {ErrorKind::kIo, "", "tcp", "messages that arrive unchanged",
          "the checksum of one is wrong"};
}

Tag tag_of(Seal& seal, std::span<const std::byte> payload) {
  PayloadTag tag = seal.of_payload();
  for (size_t at = 0; at < payload.size(); at += PayloadTag::kChunk)
    tag.add(payload.subspan(at, std::min(PayloadTag::kChunk, payload.size() - at)));
  return tag.finish();
}

}  // namespace

void PayloadTag::add(std::span<const std::byte> chunk) {
  if (authenticates_)
    crypto_onetimeauth_poly1305_update(&state_, raw(chunk), chunk.size());
  else
    sum_ = checksum(chunk, sum_);
}

Tag PayloadTag::finish() {
  static_assert(sizeof(Tag) == crypto_onetimeauth_poly1305_BYTES);
  Tag tag{sum_, 0};
  if (authenticates_)
    crypto_onetimeauth_poly1305_final(&state_, reinterpret_cast<unsigned char*>(tag.data()));
  return tag;
}

// As RFC 8439 makes one-time keys: from the stream of ChaCha20, with the message's number as nonce.
std::array<Seal::Key, 2> Seal::keys() const {
  unsigned char nonce[crypto_stream_chacha20_ietf_NONCEBYTES] = {};
  std::memcpy(nonce, &number_, sizeof number_);
  std::array<Key, 2> keys;
  static_assert(sizeof(Key) == crypto_onetimeauth_poly1305_KEYBYTES);
  crypto_stream_chacha20_ietf(keys[0].data(), sizeof keys, nonce, key_.data());
  return keys;
}

PayloadTag Seal::of_payload() const {
  PayloadTag tag;
  tag.authenticates_ = authenticates_;
  if (authenticates_) crypto_onetimeauth_poly1305_init(&tag.state_, keys()[1].data());
  return tag;
}

Tag Seal::of_header(const Header& header) const {
  const auto bytes = std::as_bytes(std::span(&header, 1)).first(offsetof(Header, own));
  if (!authenticates_) return {checksum(bytes, number_), 0};
  Tag tag;
  crypto_onetimeauth_poly1305(reinterpret_cast<unsigned char*>(tag.data()), raw(bytes),
                              bytes.size(), keys()[0].data());
  return tag;
}

Status send_message(Link& link, Kind kind, std::span<const std::byte> payload,
                    const Deadline& deadline) {
  Header header{kind, payload.size(), {}};
  header.own = link.out.of_header(header);
  const Tag tag = tag_of(link.out, payload);
  link.out.next();
  MORACLE_CHECK(send_all(link.socket, std::as_bytes(std::span(&header, 1)), deadline));
  MORACLE_CHECK(send_all(link.socket, payload, deadline));
  return send_all(link.socket, std::as_bytes(std::span(tag)), deadline);
}

Status receive_payload(Link& link, std::span<std::byte> payload, const Deadline& deadline) {
  Tag tag;
  MORACLE_CHECK(receive_all(link.socket, payload, deadline));
  MORACLE_CHECK(receive_all(link.socket, std::as_writable_bytes(std::span(tag)), deadline));
  if (tag != tag_of(link.in, payload)) return changed_bytes();
  link.in.next();
  return {};
}

Status receive_message(Link& link, Kind kind, std::span<std::byte> payload,
                       const Deadline& deadline) {
  Header header;
  MORACLE_CHECK(receive_all(link.socket, std::as_writable_bytes(std::span(&header, 1)), deadline));
  if (header.own != link.in.of_header(header) || header.kind != kind ||
      header.bytes != payload.size()) {
    return changed_bytes();
  }
  return receive_payload(link, payload, deadline);
}

}  // namespace moracle::tcp
