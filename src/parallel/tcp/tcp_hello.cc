#include "parallel/tcp/tcp_hello.h"

#include <sodium.h>

#include "base/text.h"
#include "base/try.h"

namespace moracle::tcp {
namespace {

// Different uses of the secret never share a hash.
Proof keyed(const char* use, const std::string& secret, const Hello& hello, const Nonce& nonce) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(secret.data()),
                              secret.size());
  const auto add = [&](const void* bytes, size_t count) {
    crypto_auth_hmacsha256_update(&state, static_cast<const unsigned char*>(bytes), count);
  };
  add(use, std::char_traits<char>::length(use) + 1);
  add(&hello, sizeof hello);
  add(nonce.data(), nonce.size());
  Proof proof;
  static_assert(sizeof proof == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_final(&state, proof.data());
  return proof;
}

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span<T>(&value, 1));
}

Error refused_by(int64_t rank, const std::string& fact) {
  return {ErrorKind::kInvalidArgument, "", str("rank ", rank),
          "ranks of one job, each once, with the same secret", fact};
}

}  // namespace

Status start_crypto() {
  if (sodium_init() >= 0) return {};
  return Error{ErrorKind::kIo, "", "tcp", "random numbers of the system", "there are none"};
}

Nonce fresh_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Proof proof_of_accepting(const std::string& secret, const Hello& hello, const Nonce& nonce) {
  return keyed("moracle: proof of the accepting rank", secret, hello, nonce);
}

Proof proof_of_connecting(const std::string& secret, const Hello& hello, const Nonce& nonce) {
  return keyed("moracle: proof of the connecting rank", secret, hello, nonce);
}

bool same(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Link linked(Socket socket, const std::string& secret, const Hello& hello, const Nonce& nonce,
            bool connects) {
  const bool authenticates = !secret.empty();
  const Seal from_connecting(keyed("moracle: key of the connecting rank", secret, hello, nonce),
                             authenticates);
  const Seal from_accepting(keyed("moracle: key of the accepting rank", secret, hello, nonce),
                            authenticates);
  return {std::move(socket), connects ? from_connecting : from_accepting,
          connects ? from_accepting : from_connecting};
}

std::string to_text(Refusal refusal, int64_t size, int64_t other) {
  switch (refusal) {
    case Refusal::kNone:
      return "it is accepted";
    case Refusal::kSize:
      return str("one is of a job of ", other, " ranks, the other of ", size);
    case Refusal::kRank:
      return "another rank is expected: this one is there already, or its number is another";
    case Refusal::kSecretMissing:
      return "the connecting rank has no secret, the other has one";
    case Refusal::kSecretHere:
      return "the connecting rank has a secret, the other has none";
    case Refusal::kProof:
      return "their secrets differ, or bytes changed on the way";
  }
  return "it gives no known reason";
}

Result<Link> say_hello(Socket socket, const RankOptions& options, int64_t to, int port,
                       const Deadline& deadline) {
  const Hello hello{kMagic,
                    options.size,
                    options.rank,
                    to,
                    static_cast<uint64_t>(port),
                    options.secret.empty() ? 0u : 1u,
                    fresh_nonce()};
  // An exchange that ends early is no error: the other side drops what takes too long.
  const auto ended = [&](const Status& exchanged) -> Result<Link> {
    return deadline.passed() ? Result<Link>(exchanged.error()) : Link();
  };
  Challenge challenge;
  Status exchanged = send_all(socket, std::as_bytes(std::span(&hello, 1)), deadline);
  if (exchanged) exchanged = receive_all(socket, bytes_of(challenge), deadline);
  if (!exchanged) return ended(exchanged);
  if (challenge.magic != kMagic)
    return refused_by(to, "another program, or another version, listens there");
  if (challenge.refusal != Refusal::kNone)
    return refused_by(to, to_text(challenge.refusal, challenge.size, options.size));
  if (!same(challenge.proof, proof_of_accepting(options.secret, hello, challenge.nonce)))
    return refused_by(to, to_text(Refusal::kProof, 0, 0));
  Proof proof = proof_of_connecting(options.secret, hello, challenge.nonce);
  Refusal verdict = Refusal::kNone;
  exchanged = send_all(socket, bytes_of(proof), deadline);
  if (exchanged) exchanged = receive_all(socket, bytes_of(verdict), deadline);
  if (!exchanged) return ended(exchanged);
  if (verdict != Refusal::kNone)
    return refused_by(to, to_text(verdict, challenge.size, options.size));
  return linked(std::move(socket), options.secret, hello, challenge.nonce, true);
}

}  // namespace moracle::tcp
