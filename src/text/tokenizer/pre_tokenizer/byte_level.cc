#include "text/tokenizer/pre_tokenizer/byte_level.h"

#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

constexpr uint32_t kEndOfAlphabet = 0x144;  // 188 bytes map to themselves, 68 to U+0100...U+0143

constexpr std::array<uint32_t, 256> make_alphabet() {
  std::array<uint32_t, 256> alphabet{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

constexpr std::array<uint32_t, 256> kAlphabet = make_alphabet();

constexpr std::array<int16_t, kEndOfAlphabet> make_bytes() {
  std::array<int16_t, kEndOfAlphabet> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[kAlphabet[static_cast<size_t>(byte)]] = byte;
  return bytes;
}

constexpr std::array<int16_t, kEndOfAlphabet> kBytes = make_bytes();

}  // namespace

const std::array<uint32_t, 256>& byte_level_alphabet() {
  return kAlphabet;
}

void append_byte_level(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) append_utf8(kAlphabet[static_cast<uint8_t>(byte)], out);
}

std::string bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Char next = first_char(rest);
    const bool known = next.state == Utf8Char::State::kWhole && next.code < kEndOfAlphabet;
    if (!known || kBytes[next.code] < 0) return std::string(token);
    bytes += static_cast<char>(kBytes[next.code]);
    rest.remove_prefix(next.length);
  }
  return bytes;
}

}  // namespace moracle
