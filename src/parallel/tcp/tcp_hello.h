// The handshake of two ranks. The connecting rank sends a hello. Each proves that it knows the
// job's secret, by an HMAC-SHA256 over the hello and the nonces of both: an old proof serves no
// other connection, and no other rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "parallel/tcp/tcp_message.h"

namespace moracle::tcp {

using Nonce = std::array<unsigned char, 32>;
using Proof = std::array<unsigned char, 32>;

/// 1. From the connecting rank.
struct Hello {
  uint64_t magic = 0;
  int64_t size = 0, from = 0, to = 0;  ///< ranks of the job, its own number, that of the other
  uint64_t port = 0;                   ///< the connecting rank listens there
  uint64_t has_secret = 0;
  Nonce nonce = {};
};

enum class Refusal : uint64_t { kNone, kSize, kRank, kSecretMissing, kSecretHere, kProof };

/// 2. From the other rank.
struct Challenge {
  uint64_t magic = 0;
  Refusal refusal = Refusal::kNone;
  int64_t size = 0;
  Nonce nonce = {};
  Proof proof = {};
};
/// 3. A Proof of the connecting rank. 4. The other's verdict, a Refusal.

constexpr uint64_t kMagic = 0x6d6f7261636c6532;  // "moracle2"

/// Errors: the system has no random numbers.
Status start_crypto();
Nonce fresh_nonce();
Proof proof_of_accepting(const std::string& secret, const Hello& hello, const Nonce& nonce);
Proof proof_of_connecting(const std::string& secret, const Hello& hello, const Nonce& nonce);
/// Takes as long for every wrong proof.
bool same(const Proof& a, const Proof& b);
/// The connection, with keys that follow from the secret and both nonces.
Link linked(Socket socket, const std::string& secret, const Hello& hello, const Nonce& nonce,
            bool connects);

/// Why a connection between ranks of jobs of `size` and `other` ranks is refused.
std::string to_text(Refusal refusal, int64_t size, int64_t other);

/// Introduces this rank over a fresh connection to rank `to`. A connection that ends early gives a
/// link that is not open. Errors: one of the two refuses the other; the deadline.
Result<Link> say_hello(Socket socket, const RankOptions& options, int64_t to, int port,
                       const Deadline& deadline);

}  // namespace moracle::tcp
