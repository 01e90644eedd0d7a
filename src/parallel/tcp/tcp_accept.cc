#include "parallel/tcp/tcp_accept.h"

#include <poll.h>

#include <algorithm>
#include <list>

#include "base/text.h"
#include "base/try.h"

namespace moracle::tcp {
namespace {

// A rank sends its hello and its proof at once. A rank that is dropped connects again.
constexpr double kHelloSeconds = 5;
// Above this number the oldest connection is dropped.
constexpr size_t kMostGuests = 64;

// A connection that has not proved that it is a rank.
struct Guest {
  Socket socket;
  Address from;
  Deadline until{kHelloSeconds};
  Hello hello;
  Challenge challenge;
  Proof proof = {};
  size_t got = 0;  // bytes of the hello, then of the proof
};

class Reception {
 public:
  Reception(const RankOptions& options, int64_t first, std::vector<Link>& links,
            std::vector<Address>* addresses)
      : options_(options), links_(links), addresses_(addresses) {
    for (int64_t r = first; r < options.size; ++r) wanted_.push_back(r);
  }

  Status run(const Socket& listener, const Deadline& deadline) {
    std::vector<pollfd> watched;
    while (!wanted_.empty()) {
      if (deadline.passed()) return missing(deadline.seconds());
      watched.assign(1, {listener.fd(), POLLIN, 0});
      for (const Guest& guest : guests_) watched.push_back({guest.socket.fd(), POLLIN, 0});
      ::poll(watched.data(), watched.size(), deadline.left_ms(100));
      MORACLE_CHECK(let_in(listener));
      for (auto at = guests_.begin(); at != guests_.end();) {
        const auto guest = at++;
        if (!serve(*guest)) guests_.erase(guest);
      }
    }
    return {};
  }

 private:
  Status let_in(const Socket& listener) {
    for (size_t count = 0; count < kMostGuests; ++count) {
      MORACLE_TRY(Socket socket, accept_waiting(listener));
      if (!socket.open()) return {};
      const Result<Address> from = peer_of(socket);
      if (!from) continue;  // the peer has disconnected
      if (guests_.size() == kMostGuests) {
        refuse(guests_.front(), "others came meanwhile");
        guests_.pop_front();
      }
      Guest& guest = guests_.emplace_back();
      guest.socket = std::move(socket);
      guest.from = *from;
    }
    return {};
  }

  // False: the guest was accepted as a rank, or dropped.
  bool serve(Guest& guest) {
    const auto whole = std::as_writable_bytes(std::span(&guest.hello, 1));
    if (guest.got < whole.size()) {
      if (!read(guest, whole, guest.got)) return false;
      // Refuse another protocol by its first bytes.
      const uint64_t magic = kMagic;
      const size_t known = std::min(guest.got, sizeof magic);
      if (!std::equal(whole.begin(), whole.begin() + known,
                      std::as_bytes(std::span(&magic, 1)).begin()))
        return refuse(guest, "it is no rank, or one of another version");
      if (guest.got < whole.size()) return true;
      if (!challenge(guest)) return false;
    }
    const auto proof = std::as_writable_bytes(std::span(guest.proof));
    const size_t before = guest.got - whole.size();
    size_t got = before;
    if (!read(guest, proof, got)) return false;
    guest.got += got - before;
    return got < proof.size() || welcome(guest);
  }

  // Takes the bytes that are there. False: the guest is dropped.
  bool read(Guest& guest, std::span<std::byte> to, size_t& got) {
    const Result<size_t> more = receive_some(guest.socket, to.subspan(got));
    if (!more && guest.got < sizeof guest.hello) return refuse(guest, more.error().fact);
    if (!more) {
      return refuse(guest, str(more.error().fact, " before its proof, as rank ", guest.hello.from,
                               " does with another secret"));
    }
    got += *more;
    if (got < to.size() && guest.until.passed())
      return refuse(guest, str("it said too little within ", kHelloSeconds, " s"));
    return true;
  }

  Refusal verdict(const Hello& hello) const {
    if (hello.has_secret != (options_.secret.empty() ? 0 : 1))
      return options_.secret.empty() ? Refusal::kSecretHere : Refusal::kSecretMissing;
    if (hello.size != options_.size) return Refusal::kSize;
    const bool awaited = std::find(wanted_.begin(), wanted_.end(), hello.from) != wanted_.end();
    return awaited && hello.to == options_.rank ? Refusal::kNone : Refusal::kRank;
  }

  bool challenge(Guest& guest) {
    Challenge& challenge = guest.challenge;
    challenge = {kMagic, verdict(guest.hello), options_.size, fresh_nonce(), {}};
    const bool refused = challenge.refusal != Refusal::kNone;
    if (!refused)
      challenge.proof = proof_of_accepting(options_.secret, guest.hello, challenge.nonce);
    if (!tell(guest, std::as_bytes(std::span(&challenge, 1)))) return false;
    return !refused || refuse(guest, reason(guest, challenge.refusal));
  }

  bool welcome(Guest& guest) {
    const Hello& hello = guest.hello;
    const Proof right = proof_of_connecting(options_.secret, hello, guest.challenge.nonce);
    Refusal refusal = same(guest.proof, right) ? verdict(hello) : Refusal::kProof;
    if (!tell(guest, std::as_bytes(std::span(&refusal, 1)))) return false;
    if (refusal != Refusal::kNone) return refuse(guest, reason(guest, refusal));
    std::erase(wanted_, hello.from);
    if (addresses_ != nullptr)
      (*addresses_)[hello.from] = {guest.from.ip, static_cast<uint16_t>(hello.port)};
    links_[hello.from] =
        linked(std::move(guest.socket), options_.secret, hello, guest.challenge.nonce, false);
    return false;
  }

  // An empty buffer takes these few bytes at once.
  bool tell(const Guest& guest, std::span<const std::byte> bytes) {
    const Status told = send_all(guest.socket, bytes, Deadline(0.01));
    return told || refuse(guest, told.error().fact);
  }

  std::string reason(const Guest& guest, Refusal refusal) const {
    return to_text(refusal, options_.size, guest.hello.size) +
           str(" (rank ", guest.hello.from, ")");
  }

  bool refuse(const Guest& guest, const std::string& reason) {
    ++refused_;
    last_refusal_ = str(to_string(guest.from), ": ", reason);
    return false;
  }

  Error missing(double seconds) const {
    Error error = silent_ranks(wanted_, seconds);
    if (refused_ > 0)
      error.fact += str("; refused connections: ", refused_, ", the last from ", last_refusal_);
    return error;
  }

  const RankOptions& options_;
  std::vector<Link>& links_;
  std::vector<Address>* const addresses_;
  std::vector<int64_t> wanted_;
  std::list<Guest> guests_;  // the oldest first
  int64_t refused_ = 0;
  std::string last_refusal_;
};

}  // namespace

Status accept_ranks(const Socket& listener, const RankOptions& options, int64_t first,
                    const Deadline& deadline, std::vector<Link>& links,
                    std::vector<Address>* addresses) {
  return Reception(options, first, links, addresses).run(listener, deadline);
}

}  // namespace moracle::tcp
